"""Judge the claims of the DAS paper from the committed grid and write the page.

    python benchmarks/six-domains/claims.py [RESULTS] [--output docs/claims.md]

RESULTS is the folder of the cells that `everlearn bench six-domains --results RESULTS` filled.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from everlearn_bench.claims.page import write_claims
from everlearn_bench.suites import find_suite

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?", default=HERE / "results")
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "docs" / "claims.md")
    arguments = parser.parse_args()
    claims = write_claims(find_suite("six-domains"), arguments.results, arguments.output)
    verdicts = Counter(judged.verdict for judged in claims)
    print(f"Wrote {arguments.output}: " + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))


if __name__ == "__main__":
    main()
