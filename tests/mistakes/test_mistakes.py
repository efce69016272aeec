"""Every mistake of the table is made: exit code, one sentence, no traceback, nothing written that should not be."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

import pytest

from mistakes.case import Case, Places, sentence, subjects
from mistakes.page import PAGE, row, rows_on_page

CASES = {f"{heading}: {case.name}": case for heading, cases in subjects().items() for case in cases}
ON_PAGE = rows_on_page()


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
    request.node.user_properties.append(("row", (case.name, line)))
    if case.name in ON_PAGE and not case.varies and "EVERLEARN_WRITES_MISTAKES" not in os.environ:
        assert line == ON_PAGE[case.name], "`make mistakes` writes the page anew"


def snapshot(folder: Path) -> dict[Path, tuple[int, int] | None]:
    """Everything below a folder: size and time of files, None for folders."""
    found: dict[Path, tuple[int, int] | None] = {}
    for path in folder.rglob("*"):
        facts = path.lstat()
        found[path] = None if path.is_dir() and not path.is_symlink() else (facts.st_size, facts.st_mtime_ns)
    return found


def test_the_page_has_every_case_once() -> None:
    names = [case.name for cases in subjects().values() for case in cases]
    assert len(names) == len(set(names))
    assert sorted(ON_PAGE) == sorted(names), "`make mistakes` writes the page anew"
    assert f"{len(names)} cases" in PAGE.read_text(encoding="utf-8")
