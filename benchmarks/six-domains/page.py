"""The pages of the small grid and of the longer one: their tables, from the cells beside this file.

    python benchmarks/six-domains/page.py

writes docs/results/six-domains.md and six-domains-longer.md, whose text above the first table stays as it is there.
"""

from __future__ import annotations

from pathlib import Path

from everlearn import files
from everlearn.grid import load_results
from everlearn.grid.page import GridPage
from everlearn_bench.suites import find_suite

HERE = Path(__file__).resolve().parent
PAGES = {"results": "six-domains.md", "longer-results": "six-domains-longer.md"}
"""Folder of cells → page."""


def page(text: str, results: Path) -> str:
    """A page whose tables are those of the cells in a folder.

    Args:
        text: the page as it is.
        results: the folder.
    """
    head, _, _ = text.partition("\n### ")
    tables = GridPage(find_suite("six-domains"), load_results(results)).markdown()
    return f"{head.strip()}\n\n{tables.strip()}\n"


def main() -> None:
    """Write both pages."""
    for results, name in PAGES.items():
        place = HERE.parents[1] / "docs" / "results" / name
        files.write_text(place, page(place.read_text(encoding="utf-8"), HERE / results))


if __name__ == "__main__":
    main()
