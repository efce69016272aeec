"""README's picture: what the demo learnt and forgot, drawn from the table in results/demo.md.

    python docs/demo_picture.py          # writes docs/results/demo.svg

The figure is the one that opens a report; it is drawn in the light colours of a page, so that it can stand by itself.
"""

from __future__ import annotations

import re
from pathlib import Path

from everlearn.evaluation.estimate import Estimate
from everlearn.report.figures.registry import draw
from everlearn.report.figures.standing import Standing, Standings
from everlearn.report.standalone import standalone

HERE = Path(__file__).resolve().parent
TABLE, PICTURE = HERE / "results" / "demo.md", HERE / "results" / "demo.svg"


def rows() -> list[dict[str, str]]:
    """The rows of the table under "Result": column (without arrow and unit) → cell as it is written."""
    table = TABLE.read_text(encoding="utf-8").partition("### Result\n")[2].strip().split("\n\n")[0]
    head, _, *body = ([cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines())
    return [dict(zip((name.split(" ↑")[0].split(" ↓")[0] for name in head), row, strict=True)) for row in body]


def estimate(cell: str) -> Estimate:
    """A cell like ``**+0.073** [+0.054, +0.090]``."""
    value, low, high = (float(number.replace("−", "-")) for number in re.findall(r"[+−-]?\d+\.\d+", cell))
    return Estimate(value, low, high)


def picture() -> str:
    """The figure as a file of its own."""
    runs = [Standing(row["Run"], estimate(row["Learnt"]), estimate(row["Forgotten"])) for row in rows()]
    (plate,) = draw("standing", Standings(tuple(runs), "bits/byte", ranked=False))
    return standalone(plate)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
