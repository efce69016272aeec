"""Register figures by name: a new figure is one file in this folder with one decorated function.

A figure is a function from data to plates (pictures with captions); it yields nothing if the data does not suit it. It
is registered for a type of data. A page asks for the figures of a section and gets those whose type fits its data, so a
figure for data that several pages have is on all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from markupsafe import Markup

from everlearn.plugins import Registry
from everlearn.report.drawing import SIZE, Drawing


@dataclass(frozen=True)
class Plate:
    """A picture with its caption, ready for a page."""

    svg: Markup
    caption: str
    narrow: str = ""
    """The same picture for a phone, if shrinking the wide one would make its texts unreadable."""


def plate(drawing: Drawing, caption: str, numbers: str = "", narrow: Drawing | None = None) -> Plate:
    """Return a drawing with its caption; screen readers get the caption and the numbers.

    Args:
        drawing: The picture, at most `WIDTH` wide unless it has a narrow variant.
        caption: The caption.
        numbers: Further text for screen readers.
        narrow: The same picture for a phone.
    """
    description = f"{caption} {numbers}".strip()
    if narrow is None:
        return Plate(Markup(drawing.svg(description)), caption)
    return Plate(Markup(drawing.svg(description, "wide")), caption, Markup(narrow.svg(description, "narrow")))


@dataclass(frozen=True)
class Figure:
    """A registered figure."""

    name: str
    """Name in the registry."""
    section: str
    """Section of a page; empty for figures that are used by name."""
    data: type
    """Type of its data."""
    draw: Callable[[Any], Iterable[Plate]]


FIGURES: Registry[Figure] = Registry("figures")
"""Name → figure, in the order of registration, which is also their order on a page."""
_Draw = TypeVar("_Draw", bound=Callable[[Any], Iterable[Plate]])


def figure(name: str, *, data: type, section: str = "") -> Callable[[_Draw], _Draw]:
    """Register a function from `data` to plates.

    Raises:
        ValueError: the name is taken.
    """

    def register(draw: _Draw) -> _Draw:
        if FIGURES.has(name):
            raise ValueError(f"There is a figure '{name}' already: every figure needs a name of its own.")
        FIGURES.add(name, Figure(name, section, data, draw))
        return draw

    return register


def draw(name: str, data: Any) -> list[Plate]:
    """Return the plates (pictures with captions) of one figure; an empty list if the data does not suit it."""
    return list(FIGURES[name].draw(data))


def in_section(section: str, data: Any) -> list[Plate]:
    """Return the plates of a section's figures that are registered for this type of data."""
    fitting = [each for each in FIGURES.values() if each.section == section and isinstance(data, each.data)]
    return [drawn for each in fitting for drawn in each.draw(data)]


def standalone(plate: Plate) -> str:
    """Return an SVG that does not depend on the style of a page."""
    style = (Path(__file__).parents[1] / "style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--([\w-]+): ([^;]+);", style[: style.index("@media")]))
    svg = re.sub(r' style="max-width: [^"]*"', "", str(plate.svg), count=1)
    svg = re.sub(r"var\(--([\w-]+)\)", lambda match: light[match.group(1)], svg)
    svg = re.sub(r"rgb\(([\d ]+) / ([\d.]+)\)", lambda match: f"rgba({match[1].replace(' ', ',')},{match[2]})", svg)
    width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)[0]
    ground = f'<rect width="{width}" height="{height}" fill="{light["paper"]}"/>'
    inside = f"font-family:{light['sans']};font-size:{SIZE}px;color:{light['ink']};fill:currentColor".replace('"', "'")
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{inside}"'
    return svg.replace("<svg", opened, 1).replace(">\n", f">\n{ground}\n", 1) + "\n"
