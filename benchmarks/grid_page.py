"""The pages of small grids whose strengths were chosen by choose.py: tables, trials, and what claims come to.

    python benchmarks/grid_page.py [continual-tasks/decoder|continual-tasks/encdec|glue/small …]

reads NAME-results/tuned, NAME-tuned.json and what stands beside them (NAME-results/published: one seed with the
strengths as published), and writes a page of docs/results, whose text above the first table stays as it is there, and
the page of claims.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.comparison.runs import Run
from everlearn.grid import load_results
from everlearn.grid.page import GridPage
from everlearn.grid.rows import entry_of
from everlearn.report.tables import Table, TableCell, markdown_table
from everlearn_bench.claims.page import write_claims
from everlearn_bench.suites import Suite, find_suite

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGES = {
    "continual-tasks/decoder": ("standard-cl-decoder.md", "claims-migu.md"),
    "continual-tasks/encdec": ("standard-cl-encdec.md", "claims-migu-encdec.md"),
    "glue/small": ("glue.md", "claims-glue.md"),
}
"""By the beginning of its files' names: page of results, page of claims."""
SHOWN = ("Accuracy of end tasks", "Held-out text")
"""Of the grids beside the tuned one: tables whose titles begin so."""
RATES = "Plain training at lower learning rates"
"""Title of the cells in the folder `rates`, which has a folder for each learning rate of plain training."""
BESIDE = {
    "published": "With the strengths as published",
    "glue": "On GLUE's own tasks",
    "orders": "The other orders of four tasks",
    "orders-long": "The orders of fifteen tasks",
}
"""Folders of results beside the tuned ones, of one seed: what they are of."""


def trials_table(suite: Suite, trials: dict[str, Any]) -> Table:
    """What was tried for each row, and what was chosen."""
    rows = []
    for row, outcome in trials["rows"].items():
        chosen = outcome["chosen"]
        key = list(chosen)[-1]
        trial_texts = "; ".join(f"{trial['changes'][key]:g}: {_measured(trial)}" for trial in outcome["trials"])
        cells = (
            TableCell(key.split(".")[-1]),
            TableCell(trial_texts or "none of its own"),
            TableCell(f"{chosen[key]:g}"),
        )
        rows.append((entry_of(row, suite).title, cells))
    made_of = trials["made_of"]
    caption = (
        f"Accuracy after {', '.join(made_of['domains'])}, of development examples, seed {made_of['seed']}: percent; "
        "beside it, where general text is measured, its drift in bits per byte."
    )
    if any("+" in row for row in trials["rows"]):
        caption += " A row with MIGU begins with the learning rate chosen without it."
    elif any(len(outcome["chosen"]) > 1 for outcome in trials["rows"].values()):
        caption += " A row of another strength has the learning rate chosen for plain fine-tuning."
    return Table("What was tried", ("Method", "Strength", "Value: accuracy", "Chosen"), tuple(rows), caption)


def _measured(trial: dict[str, Any]) -> str:
    drift = f", {trial['bits_drift']:+.3f}" if "bits_drift" in trial else ""
    return f"{100 * trial['accuracy']:.1f}{drift}"


def beside(results: Path) -> Iterator[str]:
    """Smaller grids that stand in folders beside the tuned one, in short."""
    for folder, title in BESIDE.items():
        if (results / folder).is_dir():
            yield from shown(title, load_results(results / folder))
    if (results / "rates").is_dir():
        yield from shown(
            RATES,
            [named_by(place.name, cell) for place in folders_of(results / "rates") for cell in load_results(place)],
        )


def shown(title: str, cells: Sequence[Run]) -> Iterator[str]:
    """A grid in short, under its title."""
    yield f"## {title}"
    for table in GridPage(find_suite(cells[0].grid.suite), cells).tables():
        if table.title.startswith(SHOWN):
            yield markdown_table(table, level=3)


def folders_of(place: Path) -> list[Path]:
    """The folders in a folder, by the number that is their name, the largest first."""
    return sorted((each for each in place.iterdir() if each.is_dir()), key=lambda each: -float(each.name))


def named_by(rate: str, cell: Run) -> Run:
    """The cell under a name and a title of its own, which tell its learning rate."""
    grid = cell.results["grid"]
    own = {"row": f"{grid['row']}-{rate}", "title": f"{grid['title']} at {float(rate):g}"}
    return replace(cell, results=cell.results | {"grid": grid | own})


def main() -> None:
    for name in sys.argv[1:] or [name for name in PAGES if (HERE / f"{name}-tuned.json").is_file()]:
        page, claims = (DOCS / "results" / PAGES[name][0], DOCS / PAGES[name][1])
        results = HERE / f"{name}-results"
        trials = json.loads((HERE / f"{name}-tuned.json").read_text(encoding="utf-8"))
        suite = find_suite(trials["made_of"]["suite"])
        text = page.read_text(encoding="utf-8").partition("\n### ")[0].strip()
        parts = [
            text,
            GridPage(suite, load_results(results / "tuned")).markdown().strip(),
            markdown_table(trials_table(suite, trials), level=3),
            *beside(results),
        ]
        files.write_text(page, "\n\n".join(parts) + "\n")
        write_claims(suite, results / "tuned", DOCS / claims)


if __name__ == "__main__":
    main()
