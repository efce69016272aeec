"""The pages of the grid: tables, score matrices and forgetting at equal gap as pictures, and what the claims come to.

    python benchmarks/m2d2/page.py

reads small-results/ and writes docs/results/m2d2.md, whose text above the first picture stays as it is there, its
pictures, and docs/claims-m2d2.md.
"""

from __future__ import annotations

from pathlib import Path

from everlearn import files
from everlearn.grid import load_results
from everlearn.grid.page import GridPage
from everlearn.report.figures.registry import standalone
from everlearn_bench.claims.page import write_claims
from everlearn_bench.suites import find_suite

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PAGE = DOCS / "results" / "m2d2.md"


def main() -> None:
    suite, results = find_suite("m2d2"), HERE / "small-results"
    sheet = GridPage(suite, load_results(results))
    parts = [PAGE.read_text(encoding="utf-8").partition("\n![")[0].strip()]
    pictures = (plate for part in sheet.parts for plate in part.plates())
    for number, plate in enumerate(pictures, 1):
        name = f"m2d2-{number}.svg"
        files.write_text(PAGE.parent / name, standalone(plate))
        parts.append(f"![{plate.caption}]({name})\n\n{plate.caption}")
    files.write_text(PAGE, "\n\n".join([*parts, sheet.markdown()]))
    write_claims(suite, results, DOCS / "claims-m2d2.md")


if __name__ == "__main__":
    main()
