"""The record of another's package in a new environment has the script's commands, which ended as they have to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = (ROOT / "docs" / "results" / "third-party.md").read_text(encoding="utf-8")


def test_the_record_has_the_commands_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import third_party

    assert re.findall(r"^## `(.*)`$", RECORD, re.MULTILINE) == [command for command, _ in third_party.COMMANDS]
    codes = list(map(int, re.findall(r": exit code (\d+), ", RECORD)))
    assert codes == [third_party.FAILS.get(place, 0) for place in range(len(codes))]
    assert third_party.RECIPE in RECORD
    assert all(RECORD.count(words) >= 2 for words in third_party.ON_PAGE), "asked for, and found"
    assert not re.findall(r"/(?:home|root|tmp|work|opt)/", RECORD)


def test_the_record_shows_every_group_of_plugins() -> None:
    project = tomllib.loads((ROOT / "examples/everlearn-example/pyproject.toml").read_text(encoding="utf-8"))["project"]
    from everlearn.plugins import GROUPS

    groups = {group.removeprefix("everlearn.") for group in project["entry-points"]}
    assert set(GROUPS) - groups == {"grid_parts"}, "what no guide shows"
    for name in ("near_base", "norms", "phi", "weather", "hello"):
        assert re.search(rf"^## `.*\b{name}\b", RECORD, re.MULTILINE), name
