"""Fixtures of the command-line tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_project import Project

import tiny


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of tiny models by architecture, each with the tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("roberta", "llama", "t5"):
        tiny.model(name, dropout=0.1).save_pretrained(folder / name)
        tiny.tokenizer().save_pretrained(folder / name)
    return folder


@pytest.fixture
def everlearn(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, models, capfd)
