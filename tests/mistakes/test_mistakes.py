"""Every mistake of the table is made: exit code, one sentence, no traceback, nothing written that should not be."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from mistakes.case import Case, Places, sentence, subjects
from mistakes.page import page, row

CASES = {f"{heading}: {case.name}": case for heading, cases in subjects().items() for case in cases}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_mistake(places: Places, case: Case, request: pytest.FixtureRequest) -> None:
    case.spoil(places)
    places.write()
    files = snapshot(places.home.parent)
    words = (word.replace("MODELS", str(places.models)).replace("HOME", str(places.home)) for word in case.command)
    outcome = places.call(*words)

    assert outcome.code == case.code, outcome
    assert "Traceback" not in outcome.err
    said = sentence(outcome, case)
    if case.code == 2:
        lines = [line for line in outcome.err.splitlines() if line.strip()]
        assert sum(line.startswith("Error: ") for line in lines) == (0 if outcome.out.startswith('{\n "ok"') else 1), (
            lines
        )
        assert said.rstrip().endswith((".", "?", ")")), said
    for part in case.says:
        assert part in said
    if case.check is not None:
        assert case.check(places, outcome) in (None, True)
    assert case.works or case.says, "a case that nothing is expected of"

    after = snapshot(places.home.parent)
    allowed = [*case.writes, "cache", "cache/*"]
    for path in after.keys() | files.keys():
        if after.get(path) != files.get(path):
            name = str(path.relative_to(places.folder)) if path.is_relative_to(places.folder) else str(path)
            assert any(fnmatch.fnmatch(name, pattern) for pattern in allowed), f"{name} was written"

    line = row(case, places, outcome)
    assert re.fullmatch(r"\| [^|]+ \|(.*[^\\])?\| .+ \|", line), line
    assert not any(str(place) in line for place in (places.home, places.models)), "a place of this machine"
    request.node.user_properties.append(("row", (case.name, line)))


def snapshot(folder: Path) -> dict[Path, tuple[int, int] | None]:
    """Everything below a folder: size and time of files, None for folders."""
    found: dict[Path, tuple[int, int] | None] = {}
    for path in folder.rglob("*"):
        facts = path.lstat()
        found[path] = None if path.is_dir() and not path.is_symlink() else (facts.st_size, facts.st_mtime_ns)
    return found


def test_the_page_has_every_case_once() -> None:
    names = [case.name for cases in subjects().values() for case in cases]
    assert len(names) == len(set(names)) > 500
    text = page({name: f"| {name} | `x` | sentence |" for name in names})
    assert f"{len(names)} cases" in text
    lines = text.splitlines()
    for heading, cases in subjects().items():
        start = lines.index(f"## {heading}") + 4
        assert lines[start : start + len(cases)] == [f"| {case.name} | `x` | sentence |" for case in cases]
    assert len([line for line in lines if line.endswith("| sentence |")]) == len(names)
