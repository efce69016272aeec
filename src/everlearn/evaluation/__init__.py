"""Evaluate checkpoints: tasks, metrics, quantities, intervals and the results of a run.

A :class:`Task` evaluates a :class:`~everlearn.predictors.Predictor` and returns a :class:`Cell`, the outcomes of every
example; the kinds of tasks are in :mod:`everlearn.tasks`. Metrics (:data:`METRICS`) turn cells into scores, quantities
(:data:`QUANTITIES`) turn scores into what was learnt and forgotten, :func:`resample` gives their intervals, and
:func:`build_results` combines everything that a run measured. Reports, grids and claims read nothing else.
"""

from everlearn.evaluation.build import build_results
from everlearn.evaluation.cell import Cell, alone_path, classification_cell, set_path, task_path, text_cell
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.metrics import METRICS, Metric, register_mean, register_metric
from everlearn.evaluation.quantities import QUANTITIES, Column, Quantity, register_quantity, summarise
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.results import MethodUsed, Results, RunFacts, Share, Spent, StageCost, Summary
from everlearn.evaluation.score_table import ScoreTable
from everlearn.evaluation.statistics import percentiles
from everlearn.evaluation.task import CONFIGS, TASK_KINDS, Conditions, Task, TaskConfig, Work, make_task, register_kind

__all__ = [
    "CONFIGS",
    "METRICS",
    "QUANTITIES",
    "TASK_KINDS",
    "Cell",
    "Column",
    "Conditions",
    "Estimate",
    "MethodUsed",
    "Metric",
    "Quantity",
    "Results",
    "RunFacts",
    "ScoreTable",
    "Share",
    "Spent",
    "StageCost",
    "Summary",
    "Task",
    "TaskConfig",
    "Work",
    "alone_path",
    "build_results",
    "classification_cell",
    "make_task",
    "percentiles",
    "register_kind",
    "register_mean",
    "register_metric",
    "register_quantity",
    "resample",
    "set_path",
    "summarise",
    "task_path",
    "text_cell",
]
