"""Write what was measured into the table of costs in docs/methods.md: time and memory beside plain training's.

    python docs/method_costs.py

The numbers are those of docs/results/overhead-5m.json, which `benchmarks/overhead.py` wrote.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from everlearn.methods import build

PAGE = Path(__file__).with_name("methods.md")
MEASURED = Path(__file__).with_name("results") / "overhead-5m.json"
HEAD = "| method | changes |"
COLUMNS = {"times_processor_seconds_per_step": "time", "times_peak_bytes": "peak memory"}
MISSING = "–"
WIDTH = 6
"""Columns of the table that are written by hand."""


def page(text: str, by_title: dict[str, dict[str, Any]]) -> str:
    """Return the page with newly measured columns in its table.

    Args:
        text: the page, with or without them.
        by_title: the methods.
    """
    before, _, rest = text.partition(HEAD)
    table, _, after = (HEAD + rest).partition("\n\n")
    return before + "\n".join(_line(line, by_title) for line in table.splitlines()) + "\n\n" + after


def _line(line: str, by_title: dict[str, dict[str, Any]]) -> str:
    cells = line.removeprefix("|").removesuffix("|").split("|")
    own = [cell.strip() for cell in cells[:WIDTH]]
    if line.startswith(HEAD):
        return _row([*own, *COLUMNS.values()])
    if set(line) == {"|", "-"}:
        return "|---" * (WIDTH + len(COLUMNS)) + "|"
    # A row of several methods has a number for each; one with words of its own is of options nobody measured.
    names = re.findall(r"`(\w+)`", own[0]) if re.fullmatch(r"`\w+`(, `\w+`)*", own[0]) else []
    found = [by_title.get(build(name).title) for name in names]
    return _row([*own, *(_numbers(found, column) for column in COLUMNS)])


def _numbers(found: list[dict[str, Any] | None], column: str) -> str:
    if not any(found):
        return MISSING
    return ", ".join(MISSING if numbers is None else f"{numbers[column]:.2f}" for numbers in found)


def _row(cells: list[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def measured() -> dict[str, dict[str, Any]]:
    """Every method that was measured, by title."""
    found: dict[str, dict[str, Any]] = json.loads(MEASURED.read_text(encoding="utf-8"))["methods"]
    return found


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), measured()), encoding="utf-8")
