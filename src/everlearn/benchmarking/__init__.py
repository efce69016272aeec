"""``everlearn bench`` and ``sweep``: a grid of methods × orders × seeds on a suite, and the table that it fills.

A user's own recipe is a suite too.
"""

from everlearn.benchmarking.cells import CellResult, load_results
from everlearn.benchmarking.entries import Entry, resolve
from everlearn.benchmarking.equal import equalised
from everlearn.benchmarking.grid import Grid, GridCell, State
from everlearn.benchmarking.settings import load_settings
from everlearn.benchmarking.summary import Line, summarise
from everlearn.benchmarking.sweep import RecipeSuite, read_orders, read_seeds
from everlearn.benchmarking.ways import read_ways

__all__ = [
    "CellResult",
    "Entry",
    "Grid",
    "GridCell",
    "Line",
    "RecipeSuite",
    "State",
    "equalised",
    "load_results",
    "load_settings",
    "read_orders",
    "read_seeds",
    "read_ways",
    "resolve",
    "summarise",
]
