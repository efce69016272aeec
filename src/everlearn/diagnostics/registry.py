"""Register analyses by name, for ``everlearn analyse RUN --also NAME=BLOCKS``.

An analysis is a function that takes a learner with a finished run, and the number of blocks of each held-out set to
read, and returns a section of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from everlearn.errors import RecipeError, did_you_mean
from everlearn.learner import ContinualLearner
from everlearn.plugins import Registry
from everlearn.report.sections import Section

Analysis = Callable[[ContinualLearner, int], Section]
ANALYSES: Registry[Analysis] = Registry("analyses")
"""Analyses of plugins; everlearn's own analyses have their own options."""
_Analysis = TypeVar("_Analysis", bound=Analysis)


def analysis(name: str) -> Callable[[_Analysis], _Analysis]:
    """Register an analysis."""

    def register(analyse: _Analysis) -> _Analysis:
        ANALYSES.add(name, analyse)
        return analyse

    return register


def find_analysis(name: str) -> Analysis:
    """Return an analysis by its name.

    Raises:
        RecipeError: there is no analysis of this name.
    """
    if name not in ANALYSES:
        raise RecipeError(
            f"`--also` names the analysis '{name}', which no installed package brings.{did_you_mean(name, ANALYSES)}"
        )
    return ANALYSES[name]


def section_as_data(section: Section) -> Mapping[str, Any]:
    """Return a section's tables as plain data: title → rows, each a mapping of headings to texts."""
    return {
        table.title: [
            dict(zip(table.header, (name, *(cell.text for cell in cells)), strict=True)) for name, cells in table.rows
        ]
        for table in section.tables
    }
