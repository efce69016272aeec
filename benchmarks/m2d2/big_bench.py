"""The page of the run that is asked BIG-bench between super-domains.

    python benchmarks/m2d2/big_bench.py

reads big-bench-results/ and writes docs/results/big-bench.md, whose text above the tables stays as it is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.grid.archive import find_cells
from everlearn.report.tables import Table, TableCell, markdown_table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "results" / "big-bench.md"
MARK = "<!-- measured -->"
SCORED = "normalised"
BASE = "base"


def signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign, as tables have it."""
    return f"{value:+.{digits}f}".replace("-", "−") if round(value, digits) else f"{0:.{digits}f}"


def header(first: str, rows: list[str]) -> tuple[str, ...]:
    """Return the names of the columns, one for each model."""
    return (first, *("base model" if row == BASE else f"after {row}" for row in rows))


def scored(cell: dict[str, Any]) -> Table:
    """Return the normalised score of each task in each model that was asked, and what the stream changed."""
    matrix, drift = cell["matrices"][SCORED], cell["summary"][SCORED]["general_drift"]
    numbers_of = {(row, task): numbers for row, task, *numbers in matrix["cells"]}

    def shown(value: float, low: float, high: float) -> TableCell:
        return TableCell(f"{signed(value)} [{signed(low)}, {signed(high)}]")

    rows = []
    for task in matrix["columns"]:
        change = shown(*(-drift[task][key] for key in ("value", "high", "low")))
        rows.append((task, (*(shown(*numbers_of[row, task]) for row in matrix["rows"]), change)))
    caption = (
        "0: guessing, 100: the best possible. In brackets: 95 % intervals over examples. The change is that from the "
        "base model to the last one, whose interval resamples the examples of both together."
    )
    return Table("Normalised scores", (*header("Task", matrix["rows"]), "change"), tuple(rows), caption)


def read(cell: dict[str, Any]) -> Table:
    """Return the bits per byte of each held-out text in each model."""
    matrix = cell["matrices"]["bits_per_byte"]
    bits = {(row, text): value for row, text, value, *_ in matrix["cells"]}
    rows = [(text, tuple(TableCell(f"{bits[row, text]:.4f}") for row in matrix["rows"])) for text in matrix["columns"]]
    caption = "Lower is better; `general` is Wikipedia and books."
    return Table("Bits per byte", header("Held-out text", matrix["rows"]), tuple(rows), caption)


def main() -> None:
    (cell,) = find_cells(HERE / "big-bench-results").values()
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    tables = [markdown_table(table, level=2) for table in (scored(cell.value), read(cell.value))]
    files.write_text(PAGE, head + "\n\n".join([MARK, *tables]) + "\n")


if __name__ == "__main__":
    main()
