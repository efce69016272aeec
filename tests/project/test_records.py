"""Records of commands in a new environment are their scripts'; what lies in the root was put there on purpose."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README_RECORD = (ROOT / "docs" / "results" / "readme-commands.md").read_text(encoding="utf-8")


def test_the_record_has_the_commands_of_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import readme_commands

    *recorded, last = re.findall(r"^## `(.*)`$", README_RECORD, re.MULTILINE)
    assert last == "pip list"
    assert recorded == readme_commands.commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert README_RECORD.count("\nexit code 0, ") == len(recorded)
    assert f"{len(recorded)} ran to their end, 0 were\nleft out, 0 failed" in README_RECORD


def test_the_environment_had_no_development_packages_and_no_path_is_recorded() -> None:
    packages = re.findall(r"^([\w.-]+) +\d", README_RECORD.partition("## `pip list`")[2], re.MULTILINE)
    assert {"everlearn", "torch", "transformers"} <= set(packages)
    assert not {"pytest", "ruff", "mypy", "trl", "build", "sphinx", "hypothesis"} & {name.lower() for name in packages}
    assert not re.findall(r"/(?:home|root|tmp|work|opt)/", README_RECORD)


THIRD_PARTY_RECORD = (ROOT / "docs" / "results" / "third-party.md").read_text(encoding="utf-8")


def test_the_record_has_the_commands_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import third_party

    assert re.findall(r"^## `(.*)`$", THIRD_PARTY_RECORD, re.MULTILINE) == [
        command for command, _ in third_party.COMMANDS
    ]
    codes = list(map(int, re.findall(r": exit code (\d+), ", THIRD_PARTY_RECORD)))
    assert codes == [third_party.FAILS.get(place, 0) for place in range(len(codes))]
    assert third_party.RECIPE in THIRD_PARTY_RECORD
    assert all(THIRD_PARTY_RECORD.count(words) >= 2 for words in third_party.ON_PAGE), "asked for, and found"
    assert not re.findall(r"/(?:home|root|tmp|work|opt)/", THIRD_PARTY_RECORD)


def test_the_record_shows_every_group_of_plugins() -> None:
    project = tomllib.loads((ROOT / "examples/everlearn-example/pyproject.toml").read_text(encoding="utf-8"))["project"]
    from everlearn.plugins import GROUPS

    groups = {group.removeprefix("everlearn.") for group in project["entry-points"]}
    assert set(GROUPS) == groups
    for name in ("near_base", "norms", "phi", "weather", "hello"):
        assert re.search(rf"^## `.*\b{name}\b", THIRD_PARTY_RECORD, re.MULTILINE), name


def test_names_in_the_root_are_words():
    # A command to which `-` was no standard output once left a file of that name.
    assert [path.name for path in ROOT.iterdir() if not path.name.lstrip(".")[:1].isalpha()] == []
