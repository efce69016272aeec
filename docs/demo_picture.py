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

HERE = Path(__file__).resolve().parent
TABLE, PICTURE = HERE / "results" / "demo.md", HERE / "results" / "demo.svg"
STYLE = HERE.parent / "src" / "everlearn" / "report" / "style.css"


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
    style = STYLE.read_text(encoding="utf-8")
    light = dict(re.findall(r"--([\w-]+): ([^;]+);", style[: style.index("@media")]))
    svg = re.sub(r"var\(--([\w-]+)\)", lambda found: light[found.group(1)], str(plate.svg))
    svg = re.sub(r"rgb\(([\d ]+) / ([\d.]+)\)", lambda found: f"rgba({found[1].replace(' ', ',')},{found[2]})", svg)
    width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)[0]
    ground = f'<rect width="{width}" height="{height}" fill="{light["paper"]}"/>'
    inside = f"font-family:{light['sans']};color:{light['ink']}".replace('"', "'")
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{inside}"'
    return svg.replace("<svg", opened, 1).replace(">\n", f">\n{ground}\n", 1) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
