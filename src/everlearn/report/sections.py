"""Define sections of a page, and register those that follow the report's own.

A section is a function from a :class:`~everlearn.comparison.comparison.Comparison` to a :class:`Section`, or to None if
it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from everlearn.comparison.comparison import Comparison
from everlearn.plugins import Registry
from everlearn.report.figures import Plate
from everlearn.report.tables import Table


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: title of the section.
        aside: a remark on how to read it.
        plates: figures.
        tables: tables, which are also shown on a terminal.
        legend: legend of the figures: name, glyph, rank.
        layout: layout of the figures: "wide", "pairs", or "" for as many side by side as fit.
        parts: parts of the section, after its own figures and tables.
        folded: whether a part is collapsed to its title at first.
    """

    title: str
    aside: str = ""
    plates: list[Plate] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    legend: tuple[tuple[str, str, int], ...] = ()
    layout: str = "wide"
    parts: list[Section] = field(default_factory=list)
    folded: bool = False


Make = Callable[[Comparison], Section | None]
SECTIONS: Registry[Make] = Registry("sections")
"""Name → function that makes the section, in the order of registration."""
_Make = TypeVar("_Make", bound=Make)


def section(name: str) -> Callable[[_Make], _Make]:
    """Register a function that makes a section of the report."""

    def register(make: _Make) -> _Make:
        SECTIONS.add(name, make)
        return make

    return register


def further_sections(comparison: Comparison) -> list[Section]:
    """Return the registered sections that apply to these runs."""
    return [section_of_runs for make in SECTIONS.values() if (section_of_runs := make(comparison)) is not None]
