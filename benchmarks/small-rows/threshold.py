"""The curve of MIGU's threshold: a picture for the page of small rows, and its table.

    python benchmarks/small-rows/threshold.py

reads threshold-results/full, writes docs/results/small-rows-threshold.svg and prints the table.
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


def curve(folder: Path) -> dict[float, tuple[float, float, float]]:
    """Return by threshold what was learnt of the second task, forgotten of the first, and the average at the end."""
    points = {}
    for kept in find_cells(folder).values():
        (migu,) = [one for one in kept.value["methods"] if one["name"] == "migu"]
        matrix = kept.value["matrices"]["bits_per_byte"]
        bits = {(row, column): mean for row, column, mean, *_ in matrix["cells"]}
        first, second = matrix["columns"]
        points[migu["options"]["threshold"]] = (
            bits["base", second] - bits[second, second],
            bits[second, first] - bits[first, first],
            (bits[second, first] + bits[second, second]) / 2,
        )
    return dict(sorted(points.items()))


def main() -> None:
    points = curve(HERE / "threshold-results" / "full")
    lines = [[Estimate(numbers[of]) for numbers in points.values()] for of in (0, 1)]
    labels = ["learnt of the second task", "forgotten of the first"]
    (plate,) = draw("swept", Swept("threshold", "bits per byte", list(points), lines, labels, CAPTION))
    files.write_text(PICTURE, standalone(plate))
    print("| Threshold | Second task learnt ↑ | First task forgotten ↓ | Average at the end ↓ |")
    print("| --- | ---: | ---: | ---: |")
    for threshold, numbers in points.items():
        print(f"| {threshold:g} | {' | '.join(f'{number:.4f}' for number in numbers)} |")


if __name__ == "__main__":
    main()
