"""Write a figure as a file of its own, in the light colours of a page."""

from __future__ import annotations

import re
from pathlib import Path

from everlearn.report.drawing import SIZE
from everlearn.report.figures.registry import Plate


def standalone(plate: Plate) -> str:
    """Return an SVG that does not depend on the style of a page."""
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--([\w-]+): ([^;]+);", style[: style.index("@media")]))
    svg = re.sub(r"var\(--([\w-]+)\)", lambda found: light[found.group(1)], str(plate.svg))
    svg = re.sub(r"rgb\(([\d ]+) / ([\d.]+)\)", lambda found: f"rgba({found[1].replace(' ', ',')},{found[2]})", svg)
    width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)[0]
    ground = f'<rect width="{width}" height="{height}" fill="{light["paper"]}"/>'
    inside = f"font-family:{light['sans']};font-size:{SIZE}px;color:{light['ink']};fill:currentColor".replace('"', "'")
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{inside}"'
    return svg.replace("<svg", opened, 1).replace(">\n", f">\n{ground}\n", 1) + "\n"
