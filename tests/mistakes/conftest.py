"""The project in which mistakes are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from mistakes.case import Places


@pytest.fixture
def places(
    tmp_path: Path,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Places:
    """A project in `~/work`, with a home folder of its own."""
    project = Places(tmp_path / "home", models, capfd, lambda: request.getfixturevalue("finished_run"), monkeypatch)
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("HOME", str(project.home))
    return project
