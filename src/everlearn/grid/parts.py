"""Define parts that plugins add to the page of a grid: further tables, columns and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from everlearn.comparison.runs import Run
from everlearn.grid.summary import Line
from everlearn.grid.template import GridTemplate
from everlearn.plugins import Registry
from everlearn.report.figures import Plate
from everlearn.report.tables import Table


@dataclass(frozen=True)
class GridContents:
    """The content of a page.

    Attributes:
        template: the grid's template.
        cells: the results.
        lines: the rows of the tables.
        tasks: names of the end tasks.
        asked_along: whether end tasks were scored inside stages.
    """

    template: GridTemplate
    cells: Sequence[Run]
    lines: Sequence[Line]
    tasks: Sequence[str]
    asked_along: bool


@dataclass(frozen=True)
class FactColumn:
    """A column of the table of costs.

    Attributes:
        title: its heading.
        shown: row → text of its cell; "–" is shown for missing rows.
        caption: sentences about it, below the table.
    """

    title: str
    shown: Mapping[str, str]
    caption: str


class GridPart:
    """Base class of parts of a grid's page. Override what the part has."""

    def tables(self) -> Sequence[Table]:
        """Return tables of scores, which follow those of every grid."""
        return ()

    def columns(self) -> Sequence[FactColumn]:
        """Return further columns of the table of costs."""
        return ()

    def last_tables(self) -> Sequence[Table]:
        """Return tables that end the page."""
        return ()

    def plates(self) -> Iterable[Plate]:
        """Return pictures, which follow those of every grid."""
        return ()


Make = Callable[[GridContents], GridPart | None]
PARTS: Registry[Make] = Registry("grid_parts")
"""Name → what makes the part of a page, or None if it does not apply; in the order of registration."""
_Make = TypeVar("_Make", bound=Make)


def grid_part(name: str) -> Callable[[_Make], _Make]:
    """Register a function or class that makes a part of a grid's page."""

    def register(make: _Make) -> _Make:
        PARTS.add(name, make)
        return make

    return register


def parts_of(shown: GridContents) -> list[GridPart]:
    """Return the registered parts that apply to a grid, by name: modules may be imported in any order."""
    return [part for _, make in sorted(PARTS.items()) if (part := make(shown)) is not None]
