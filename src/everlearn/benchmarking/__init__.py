"""``everlearn bench``: a grid of methods × orders × seeds on one suite, and the table that it fills."""

from everlearn.benchmarking.cells import CellResult, load_results
from everlearn.benchmarking.entries import Entry, resolve
from everlearn.benchmarking.grid import Grid, GridCell, State
from everlearn.benchmarking.settings import load_settings
from everlearn.benchmarking.summary import Line, summarise

__all__ = [
    "CellResult",
    "Entry",
    "Grid",
    "GridCell",
    "Line",
    "State",
    "load_results",
    "load_settings",
    "resolve",
    "summarise",
]
