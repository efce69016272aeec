"""Write reports, tables and a model card from the results of one or more runs."""

from __future__ import annotations

from everlearn.comparison.comparison import Comparison, compare
from everlearn.comparison.measures import Measure
from everlearn.report.card import model_card
from everlearn.report.html import page, write_report
from everlearn.report.run_results import RunResults
from everlearn.report.tables import csv, json, latex, markdown, terminal
from everlearn.report.verdict import verdict

__all__ = [
    "Comparison",
    "Measure",
    "RunResults",
    "compare",
    "csv",
    "json",
    "latex",
    "markdown",
    "model_card",
    "page",
    "terminal",
    "verdict",
    "write_report",
]
