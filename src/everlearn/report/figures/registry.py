"""The figures by name: a new plot is one file in this folder with one decorated function.

A figure is a function from data to plates (pictures with captions); where it does not apply it gives none. What it is
registered for is the type of its data: a page asks for the figures of one of its sections and gets those that its data
fit, so a figure that works on what several pages have is on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from markupsafe import Markup

from everlearn.plugins import Registry
from everlearn.report.drawing import Drawing


@dataclass(frozen=True)
class Plate:
    """A picture, ready to be put into a page, with its caption."""

    svg: Markup
    caption: str
    narrow: str = ""
    """The same picture laid out for a phone, where shrinking the wide one would make its texts unreadable."""


def plate(drawing: Drawing, caption: str, numbers: str = "", narrow: Drawing | None = None) -> Plate:
    """Return a drawing with its caption; a screen reader is told the caption and the numbers.

    Args:
        drawing: The picture; it is at most `WIDTH` wide, or has a narrow variant.
        caption: What is seen.
        numbers: What a screen reader is told beside the caption.
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
    """What it is asked for by."""
    title: str
    """What it shows."""
    section: str
    """Where on a page it stands; empty for figures that a page places by name."""
    data: type
    """What it is drawn from."""
    draw: Callable[[Any], Iterable[Plate]]


FIGURES: Registry[Figure] = Registry("figures")
"""Name → figure, in the order of registration, which is the order on the page."""
_Draw = TypeVar("_Draw", bound=Callable[[Any], Iterable[Plate]])


def figure(name: str, *, title: str, data: type, section: str = "") -> Callable[[_Draw], _Draw]:
    """Register a function from `data` to plates.

    Raises:
        ValueError: the name is taken.
    """

    def register(draw: _Draw) -> _Draw:
        if FIGURES.has(name):
            raise ValueError(f"There is a figure '{name}' already: every figure needs a name of its own.")
        FIGURES.add(name, Figure(name, title, section, data, draw))
        return draw

    return register


def draw(name: str, data: Any) -> list[Plate]:
    """The plates of one figure; none where it does not apply."""
    return list(FIGURES[name].draw(data))


def in_section(section: str, data: Any) -> list[Plate]:
    """The plates of a section's figures that are drawn from data of this type."""
    fitting = [found for found in FIGURES.values() if found.section == section and isinstance(data, found.data)]
    return [made for found in fitting for made in found.draw(data)]
