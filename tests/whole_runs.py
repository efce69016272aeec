"""Fixtures of the folders whose tests make whole runs; each names them in its conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def no_report() -> Iterator[None]:
    """Runs without their HTML page, which takes as long as all the rest of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everlearn.report.write_report", lambda *_: None)
        yield
