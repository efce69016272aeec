"""Analyses of finished runs, one file each: ``everlearn analyse KIND RUN``.

Every module in this package is imported; analyses of plugins are found by their entry points.
"""

from __future__ import annotations

import importlib
import pkgutil

from everlearn.diagnostics.registry import ANALYSES, Analysis
from everlearn.errors import RecipeError, did_you_mean

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")):
    importlib.import_module(_module)


def find_analysis(name: str) -> Analysis:
    """Return an analysis by its name.

    Raises:
        RecipeError: there is no analysis of this name.
    """
    if name not in ANALYSES:
        raise RecipeError(f"There is no analysis '{name}'.{did_you_mean(name, ANALYSES)}")
    return ANALYSES[name]


def recorded() -> list[Analysis]:
    """Return the analyses that only read what the run recorded."""
    return [each for each in ANALYSES.values() if each.recorded]
