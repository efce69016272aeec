"""The curves of MIGU's threshold and of the learning rate: a picture for the page of small rows, and tables.

    python benchmarks/small-rows/threshold.py

reads threshold-results, writes docs/results/small-rows-threshold.svg (all weights) and prints the tables.
"""

from __future__ import annotations

from pathlib import Path

from everlearn import files
from everlearn.evaluation.estimate import Estimate
from everlearn.grid.archive import find_cells
from everlearn.report.figures.registry import draw, standalone
from everlearn.report.figures.swept import Swept

HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs/results/small-rows-threshold.svg"
CAPTION = "Bits per byte by MIGU's threshold: learnt of the second task, forgotten of the first."
CURVES = {"full": "Threshold", "rates": "Learning rate", "lora": "Threshold, LoRA"}
"""Folder of results → what changes along its curve."""
RATE, USUAL = "domains.pandas.train.learning_rate", 1.0e-3
"""The learning rate of the second task, and the one of threshold.yaml."""


def curve(folder: Path) -> dict[float, tuple[float, float, float]]:
    """Return by threshold or rate: learnt of the second task, forgotten of the first, and the average at the end."""
    points = {}
    for kept in find_cells(folder).values():
        changed = kept.value["grid"]["options"].get(RATE, USUAL)
        for method in kept.value["methods"]:
            changed = method["options"].get("threshold", changed)
        matrix = kept.value["matrices"]["bits_per_byte"]
        bits = {(row, column): mean for row, column, mean, *_ in matrix["cells"]}
        first, second = matrix["columns"]
        points[changed] = (
            bits["base", second] - bits[second, second],
            bits[second, first] - bits[first, first],
            (bits[second, first] + bits[second, second]) / 2,
        )
    return dict(sorted(points.items()))


def main() -> None:
    curves = {name: curve(HERE / "threshold-results" / name) for name in CURVES}
    points = curves["full"]
    lines = [[Estimate(numbers[of]) for numbers in points.values()] for of in (0, 1)]
    labels = ["learnt of the second task", "forgotten of the first"]
    (plate,) = draw("swept", Swept("threshold", "bits per byte", list(points), lines, labels, CAPTION))
    files.write_text(PICTURE, standalone(plate))
    for name, points in curves.items():
        print(f"\n| {CURVES[name]} | Second task learnt ↑ | First task forgotten ↓ | Average at the end ↓ |")
        print("| --- | ---: | ---: | ---: |")
        for value, numbers in points.items():
            print(f"| {value:g} | {' | '.join(f'{number:.4f}' for number in numbers)} |")


if __name__ == "__main__":
    main()
