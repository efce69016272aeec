"""``everlearn bench``: a grid of methods × orders × seeds on one suite, and the table that it fills."""

from everlearn.benchmarking.cells import CellResult, load_results
from everlearn.benchmarking.entries import GROUPS, Entry, resolve
from everlearn.benchmarking.grid import Grid, GridCell, State
from everlearn.benchmarking.settings import Settings, load_settings
from everlearn.benchmarking.suites import SUITES, Published, Suite, find_suite
from everlearn.benchmarking.summary import Line, summarise

__all__ = [
    "GROUPS",
    "SUITES",
    "CellResult",
    "Entry",
    "Grid",
    "GridCell",
    "Line",
    "Published",
    "Settings",
    "State",
    "Suite",
    "find_suite",
    "load_results",
    "load_settings",
    "resolve",
    "summarise",
]
