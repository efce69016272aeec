"""Run six domains with their end tasks on the encoder that minilm.py makes, by `everlearn bench`.

    python benchmarks/real-models/encoder.py MODEL DATA [--work FOLDER]

MODEL is the last stage of minilm.py's run. The rules are in README.md. First MODEL itself is fine-tuned on each end
task with three seeds, which decides what counts (encoder-tasks.json). Finished cells are kept in encoder/, in a folder
for each learning rate, and not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from everlearn import files

HERE = Path(__file__).parent
TASKS = HERE / "encoder-tasks.json"
NORMAL = 1.96
"""Half the width of a 95 % interval, in standard errors."""
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


def judged(truth: np.ndarray, predictions: np.ndarray) -> dict[str, Any]:
    """Return whether each row of predictions is above the best constant answer, with what that says.

    Args:
        truth: [N], the labels of the test set.
        predictions: [seeds, N].

    Returns:
        `examples`; `constant`, the accuracy of the most frequent label; `accuracy` of each seed; `above`, the lower end
        of the 95 % interval of the paired difference from the constant answer, for each seed; `counts`, whether all of
        these are above 0.
    """
    labels, numbers = np.unique(truth, return_counts=True)
    constant = truth == labels[numbers.argmax()]
    right = predictions == truth
    difference = right.astype(float) - constant
    error = difference.std(axis=1, ddof=1) / np.sqrt(len(truth))
    above = difference.mean(axis=1) - NORMAL * error
    return {
        "examples": len(truth),
        "constant": float(constant.mean()),
        "accuracy": right.mean(axis=1).tolist(),
        "above": above.tolist(),
        "counts": bool((above > 0).all()),
    }


def decide(evaluation: Path) -> None:
    """Write what the end tasks of an evaluation show."""
    judgements = {}
    for path in sorted((evaluation / "stage-00" / "tasks").glob("*.safetensors")):
        cell = load_file(path)
        judgements[path.stem] = judged(cell["given.truth"], cell["outcomes.predictions"])
    files.write_text(TASKS, json.dumps(judgements, indent=1) + "\n")
    for name, each in judgements.items():
        print(name, "counts" if each["counts"] else "does not count")


def bench(arguments: argparse.Namespace, methods: str, results: Path, runs: Path, *options: str) -> None:
    """Run the missing cells of some rows of the suite."""
    places = ("--model", arguments.model, "--data", arguments.data, "--results", results, "--runs", runs)
    settings = ("--settings", HERE / "encoder.yaml")
    command = ["everlearn", "bench", "six-domains", "--quiet", "--methods", methods, *settings, *places, *options]
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/encoder"))
    arguments = parser.parse_args()
    if not TASKS.is_file():
        place = arguments.work / "tasks"
        bench(arguments, FIRST, place / "results", place, "evaluation.end_task_seeds=3")
        decide(place / "base" / "run" / "evaluation")
    for rate, methods, order, seeds in calls():
        which = ("--orders", str(order), "--seeds", seeds, f"train.learning_rate={rate}")
        bench(arguments, methods, HERE / "encoder" / rate, arguments.work / rate, *which)


if __name__ == "__main__":
    main()
