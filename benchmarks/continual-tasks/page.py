"""The pages of the small grids of `standard-cl`, one for each base: tables, and what the MIGU paper's claims come to.

    python benchmarks/continual-tasks/page.py [decoder|encdec …]

reads BASE-results/tuned and writes docs/results/standard-cl-BASE.md, whose text above the first table stays as it is
there, and the page of claims.
"""

from __future__ import annotations

import sys
from pathlib import Path

from everlearn import files
from everlearn.benchmarking import load_results
from everlearn.benchmarking.claims_page import write_claims
from everlearn.benchmarking.page import Sheet
from everlearn.suites import find_suite

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
CLAIMS = {"decoder": "claims-migu.md", "encdec": "claims-migu-encdec.md"}


def main() -> None:
    suite = find_suite("standard-cl")
    for base in sys.argv[1:] or CLAIMS:
        results, page = HERE / f"{base}-results" / "tuned", DOCS / "results" / f"standard-cl-{base}.md"
        said = page.read_text(encoding="utf-8").partition("\n### ")[0].strip()
        files.write_text(page, f"{said}\n\n{Sheet(suite, load_results(results)).markdown()}")
        write_claims(suite, results, DOCS / CLAIMS[base])


if __name__ == "__main__":
    main()
