"""Run what is recommended and plain training on the fresh stream, by `everlearn sweep`.

    python benchmarks/real-models/fresh.py MODEL DATA [--work FOLDER]

The rules are in README.md. Finished cells are kept in ``fresh/`` and not run again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ORDERS = ("given", "linguistics,restaurants,how_to,vision")
SEEDS = (1, 2, 3)
RECOMMENDED = "mas:protect_base=true:normalise=mean:anchor=separate:follow=0.4:strength=0.0215:samples=16"
ROWS = (("sequential", "2.5e-5,5e-5,1.2e-4"), (RECOMMENDED, "3e-4"))
"""Methods and their learning rates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/fresh"))
    parser.add_argument("--results", type=Path, default=HERE / "fresh")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    # Relative places, so that cells do not depend on the machine.
    for name, place in (("model", given.model), ("data", given.data)):
        if not (given.work / name).exists():
            (given.work / name).symlink_to(place.resolve())
    shutil.copy(HERE / "fresh.yaml", given.work)
    for seed in SEEDS:
        for order in ORDERS:
            for method, rates in ROWS:
                call = [sys.executable, "-m", "everlearn", "sweep", "fresh.yaml", "--quiet", "--equal-compute"]
                call += ["--methods", method, "--set", f"train.learning_rate={rates}"]
                call += ["--seeds", str(seed), "--orders", order, "--results", str(given.results.resolve())]
                subprocess.run(call, cwd=given.work, check=True)


if __name__ == "__main__":
    main()
