"""The record of README's commands in a new environment has README's commands, all of which ran to their end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = (ROOT / "docs" / "results" / "readme-commands.md").read_text(encoding="utf-8")


def test_the_record_has_the_commands_of_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme_commands

    *recorded, last = re.findall(r"^## `(.*)`$", RECORD, re.MULTILINE)
    assert last == "pip list"
    assert recorded == readme_commands.commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert RECORD.count("\nexit code 0, ") == len(recorded)
    assert f"{len(recorded)} ran to their end, 0 were\nleft out, 0 failed" in RECORD


def test_the_environment_had_no_development_packages_and_no_path_is_recorded() -> None:
    packages = re.findall(r"^([\w.-]+) +\d", RECORD.partition("## `pip list`")[2], re.MULTILINE)
    assert {"everlearn", "torch", "transformers"} <= set(packages)
    assert not {"pytest", "ruff", "mypy", "trl", "build", "sphinx", "hypothesis"} & {name.lower() for name in packages}
    assert not re.findall(r"/(?:home|root|tmp|work|opt)/", RECORD)
