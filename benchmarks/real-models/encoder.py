"""Run six domains with their end tasks on the encoder that minilm.py makes, by `everlearn bench`.

    python benchmarks/real-models/encoder.py MODEL DATA [--work FOLDER]

MODEL is the last stage of minilm.py's run. The rules are in README.md. Finished cells are kept in encoder/, in a folder
for each learning rate, and not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
RATE = "3e-4"
"""Learning rate of every method; plain training has a lower and a higher one beside it."""
FIRST = "none"
MAIN = "sequential,mas,das,migu,ewc,kd,derpp"
OTHERS = "separate,pool,dap_adapter,hat,ablations"
ORDERS = (0, 1)


def calls() -> Iterator[tuple[str, str, int, str]]:
    """Return learning rate, methods, order and seeds of each call of `bench`, in the order of the runs."""
    yield RATE, FIRST, 0, "0"
    for seed in "012":
        for order in ORDERS:
            yield RATE, MAIN, order, seed
            for rate in ("1e-4", "1e-3"):
                yield rate, "sequential", order, seed
    for seed in "012":
        for order in ORDERS:
            yield RATE, OTHERS, order, seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/encoder"))
    given = parser.parse_args()
    everlearn = [sys.executable, "-m", "everlearn", "bench", "six-domains", "--settings", str(HERE / "encoder.yaml")]
    for rate, methods, order, seeds in calls():
        subprocess.run(
            [
                *everlearn,
                *("--model", str(given.model), "--data", str(given.data), "--quiet"),
                *("--methods", methods, "--orders", str(order), "--seeds", seeds),
                *("--results", str(HERE / "encoder" / rate), "--runs", str(given.work / rate)),
                f"train.learning_rate={rate}",
            ],
            check=True,
        )


if __name__ == "__main__":
    main()
