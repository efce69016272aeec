"""Fixtures of the folders whose tests make whole runs; each names them in its conftest.py."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import everlearn.learner  # noqa: F401  (before the freeze)


@pytest.fixture(scope="session", autouse=True)
def cheap_collections() -> Iterator[None]:
    """Accelerate collects garbage before each stage: keep it from walking through every imported module each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def no_report() -> Iterator[None]:
    """Runs without their HTML page, which takes as long as all the rest of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everlearn.report.write_report", lambda *_: None)
        yield
