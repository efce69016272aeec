"""The pages of the grid: tables, score matrices and forgetting at equal gap as pictures, and what the claims come to.

    python benchmarks/m2d2/page.py

reads small-results/ and tiny-results/ and writes docs/results/m2d2.md, whose text above the first picture and below
the heading of the tiny cells stays as it is there, its pictures, and docs/claims-m2d2.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from everlearn import files
from everlearn.comparison import formatting as fmt
from everlearn.comparison.runs import Run
from everlearn.grid import load_results
from everlearn.grid.page import GridPage
from everlearn.report.figures.registry import standalone
from everlearn.report.tables import Table, TableCell, markdown_table
from everlearn_bench.claims.page import write_claims
from everlearn_bench.suites import find_suite
from everlearn_bench.transfer_study.measures import ALL
from everlearn_bench.transfer_study.tables import BITS, stream_of

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PAGE = DOCS / "results" / "m2d2.md"
TINY = "## At a twentieth of the text"
SETTINGS = {
    "causal": "",
    "batch-32": "32 rows a step, similar order",
    "batch-2": "2 rows a step, similar order",
    "unlike": "three domains with a quarter of their documents, similar order",
    "width-64": "64 wide, similar order",
    "width-128": "128 wide, similar order",
    "width-256": "256 wide, similar order",
    "masked": "masked, similar order",
    "masked-docs": "masked, the demo's encoder, similar order",
}
"""Folder of tiny-results → how its cells differ from the first folder's."""
ORDERS = {0: "similar order", 1: "super-domains swapped", 11: "random order 1", 12: "random order 2"}
MEASURED = {"continual": "Learnt ↑", "fg": "Forgotten ↓", "lc": "Gained at the end ↑", "forward": "Forward ↑"}
DRIFT = "general"


def tiny_cells() -> dict[str, Run]:
    """The cells of tiny.yaml by their labels."""
    cells = {}
    for folder, title in SETTINGS.items():
        place = HERE / "tiny-results" / folder
        for run in sorted(load_results(place), key=lambda each: each.grid.order or 0) if place.is_dir() else ():
            cells[title or ORDERS[run.grid.order or 0]] = run
    return cells


def numbers(run: Run) -> Iterator[float]:
    """The base model's mean of the domains, the measures, and the drift of general text, in bits per byte."""
    stream = stream_of(run, BITS)
    assert stream is not None
    spread, matrix = stream.spread(), run.matrices[BITS]
    general = [matrix.scores[row, DRIFT].value or 0.0 for row in (0, len(matrix.rows) - 1)]
    yield fmean(stream.losses[0])
    yield from (spread[measure][ALL].mean for measure in MEASURED)
    yield general[1] - general[0]


def tiny_table(cells: Mapping[str, Run]) -> Table:
    """A row for each cell of tiny.yaml."""
    rows = []
    for label, run in cells.items():
        base, *others = numbers(run)
        cells_of_row = (fmt.fixed(base, 3), *(fmt.fixed(each, 3, signed=True) for each in others))
        rows.append((label, tuple(map(TableCell, cells_of_row))))
    header = ("Cell", "Base model", *MEASURED.values(), "General drift ↓")
    caption = (
        "Bits per byte, means over six domains, one run each. Learnt and gained at the end are against the base model, "
        "forgotten against the score right after a domain's own stage; forward: before its own stage, against the base "
        "model."
    )
    return Table("Six domains, 100 kB each", header, tuple(rows), caption)


def main() -> None:
    suite, results = find_suite("m2d2"), HERE / "small-results"
    sheet = GridPage(suite, load_results(results))
    text = PAGE.read_text(encoding="utf-8")
    description = text.partition(f"\n{TINY}\n")[2].partition("\n### ")[0].strip()
    parts = [text.partition("\n![")[0].strip()]
    pictures = (plate for part in sheet.parts for plate in part.plates())
    for number, plate in enumerate(pictures, 1):
        name = f"m2d2-{number}.svg"
        files.write_text(PAGE.parent / name, standalone(plate))
        parts.append(f"![{plate.caption}]({name})\n\n{plate.caption}")
    parts += [sheet.markdown().strip(), TINY, description, markdown_table(tiny_table(tiny_cells()), 3)]
    files.write_text(PAGE, "\n\n".join(parts) + "\n")
    write_claims(suite, results, DOCS / "claims-m2d2.md")


if __name__ == "__main__":
    main()
