"""Decide which end tasks count with the encoder, by the rule of README.md.

    python benchmarks/real-models/which_tasks.py MODEL DATA [--work FOLDER]

Fine-tunes MODEL, the last stage of minilm.py's run, on each end task with three seeds, and writes encoder-tasks.json
beside this script, which page.py shows. After a stop it goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from everlearn import files

HERE = Path(__file__).parent
OUTPUT = HERE / "encoder-tasks.json"
NORMAL = 1.96
"""Half the width of a 95 % interval, in standard errors."""


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
    found = {}
    for path in sorted((evaluation / "stage-00" / "tasks").glob("*.safetensors")):
        cell = load_file(path)
        found[path.stem] = judged(cell["given.truth"], cell["outcomes.predictions"])
    files.write_text(OUTPUT, json.dumps(found, indent=1) + "\n")
    for name, each in found.items():
        print(name, "counts" if each["counts"] else "does not count")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/encoder-tasks"))
    given = parser.parse_args()
    subprocess.run(
        [
            *(sys.executable, "-m", "everlearn", "bench", "six-domains", "--settings", str(HERE / "encoder.yaml")),
            *("--model", str(given.model), "--data", str(given.data), "--quiet", "--methods", "none"),
            *("--results", str(given.work / "results"), "--runs", str(given.work)),
            "evaluation.end_task_seeds=3",
        ],
        check=True,
    )
    decide(given.work / "base" / "run" / "evaluation")


if __name__ == "__main__":
    main()
