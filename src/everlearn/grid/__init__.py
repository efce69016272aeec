"""Run grids of methods × orders × seeds on a suite, and show the results in tables (``everlearn bench`` and ``sweep``).

A user's own recipe is a suite too.
"""

from everlearn.grid.cells import load_results
from everlearn.grid.equal_compute import equalised
from everlearn.grid.grid import Grid, GridRun, State
from everlearn.grid.recipe_template import RecipeTemplate, read_orders, read_seeds
from everlearn.grid.rows import RowSpec, resolve
from everlearn.grid.summary import Line, summarise
from everlearn.grid.variations import read_variations

__all__ = [
    "Grid",
    "GridRun",
    "Line",
    "RecipeTemplate",
    "RowSpec",
    "State",
    "equalised",
    "load_results",
    "read_orders",
    "read_seeds",
    "read_variations",
    "resolve",
    "summarise",
]
