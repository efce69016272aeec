"""The pages of the small grids of `standard-cl`, one for each base: tables, and what the MIGU paper's claims come to.

    python benchmarks/continual-tasks/page.py [decoder|encdec …]

reads BASE-results/tuned, BASE-tuned.json and, where it is there, BASE-results/published (one seed with the strengths as
published), and writes docs/results/standard-cl-BASE.md, whose text above the first table stays as it is there, and the
page of claims.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.benchmarking import load_results
from everlearn.benchmarking.claims_page import write_claims
from everlearn.benchmarking.entries import entry_of
from everlearn.benchmarking.page import Sheet
from everlearn.report.tables import Table, TableCell, markdown_table
from everlearn.suites import Suite, find_suite

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
CLAIMS = {"decoder": "claims-migu.md", "encdec": "claims-migu-encdec.md"}
SHOWN = ("Accuracy of end tasks", "Held-out text")
"""Of the runs with published strengths: tables whose titles begin so."""


def trials_table(suite: Suite, trials: dict[str, Any]) -> Table:
    """What was tried for each row, and what was chosen."""
    rows = []
    for row, found in trials["rows"].items():
        tried, chosen = found["trials"], found["chosen"]
        key = list(chosen)[-1]
        said = "; ".join(f"{trial['changes'][key]:g}: {100 * trial['accuracy']:.1f}" for trial in tried)
        cells = (TableCell(key.split(".")[-1]), TableCell(said or "none of its own"), TableCell(f"{chosen[key]:g}"))
        rows.append((entry_of(row, suite).title, cells))
    caption = (
        f"Accuracy after {', '.join(trials['made_of']['domains'])}, of development examples, seed "
        f"{trials['made_of']['seed']}: percent. A row with MIGU begins with the learning rate chosen without it."
    )
    return Table("What was tried", ("Method", "Strength", "Value: accuracy", "Chosen"), tuple(rows), caption)


def published_tables(suite: Suite, results: Path) -> list[str]:
    """The same grid with every strength as published, one seed."""
    if not results.is_dir():
        return []
    tables = [table for table in Sheet(suite, load_results(results)).tables() if table.title.startswith(SHOWN)]
    return ["## With the strengths as published", *(markdown_table(table, level=3) for table in tables)]


def main() -> None:
    suite = find_suite("standard-cl")
    for base in sys.argv[1:] or CLAIMS:
        results, page = HERE / f"{base}-results", DOCS / "results" / f"standard-cl-{base}.md"
        said = page.read_text(encoding="utf-8").partition("\n### ")[0].strip()
        trials = json.loads((HERE / f"{base}-tuned.json").read_text(encoding="utf-8"))
        parts = [
            said,
            Sheet(suite, load_results(results / "tuned")).markdown().strip(),
            markdown_table(trials_table(suite, trials), level=3),
            *published_tables(suite, results / "published"),
        ]
        files.write_text(page, "\n\n".join(parts) + "\n")
        write_claims(suite, results / "tuned", DOCS / CLAIMS[base])


if __name__ == "__main__":
    main()
