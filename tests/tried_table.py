"""The table of a page that says what was tried: its lines in the page, and how a script writes them anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

BEGIN, END = "<!-- tried -->", "<!-- /tried -->"


def table(columns: Sequence[str], rows: Iterable[str]) -> list[str]:
    """Return the lines of a table, its head included."""
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *rows]


def lines_of(page: Path) -> list[str]:
    """Return the lines of the table in a page."""
    return page.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip().splitlines()


def rows_of(page: Path) -> dict[str, str]:
    """Return the rows of the table in a page by their first cell."""
    return {row.split("|")[1].strip(): row for row in lines_of(page)[2:]}


def write(page: Path, lines: Iterable[str]) -> None:
    """Replace the table in a page."""
    before, after = page.read_text(encoding="utf-8").split(BEGIN)[0], page.read_text(encoding="utf-8").split(END)[1]
    page.write_text("\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"]), encoding="utf-8")
