"""From the results of one or more runs to a page, tables and a model card."""

from __future__ import annotations

from everlearn.report.card import model_card
from everlearn.report.comparison import Comparison, compare
from everlearn.report.html import page, write_report
from everlearn.report.measures import Measure
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
