"""What was learnt and what was forgotten.

A :class:`Task` asks a :class:`Predictor` and leaves a :class:`Cell`, the outcomes of every example. Metrics
(:data:`METRICS`) make scores of cells, quantities (:data:`QUANTITIES`) make what was learnt and forgotten of scores,
:func:`resample` makes intervals, and :func:`build_results` all that a run has to say. Report, bench and claims read
these and nothing else.
"""

from everlearn.data.endtask import TaskConfig
from everlearn.evaluation.big_bench import BigBench
from everlearn.evaluation.build import build_results
from everlearn.evaluation.by_perplexity import ByPerplexity
from everlearn.evaluation.by_text import ByText
from everlearn.evaluation.cell import Cell, alone_path, classification_cell, set_path, task_path, text_cell
from everlearn.evaluation.chat import Chat
from everlearn.evaluation.choice import Choice, Schema
from everlearn.evaluation.classification import Classification
from everlearn.evaluation.codelength import Codelength
from everlearn.evaluation.endtasks import evaluate_task, fine_tune, steps_of
from everlearn.evaluation.ensemble import Ensemble
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.generation import Generation
from everlearn.evaluation.harness import HarnessScore
from everlearn.evaluation.held_out import HeldOut, HeldOutText
from everlearn.evaluation.metrics import METRICS, Metric, accuracy, macro_f1, register_mean, register_metric
from everlearn.evaluation.perplexity import BlockLosses, block_losses
from everlearn.evaluation.predictor import Checkpoint, Predictor
from everlearn.evaluation.programs import Programs
from everlearn.evaluation.quantities import QUANTITIES, Column, Quantity, register_quantity, summarise
from everlearn.evaluation.resampling import resample
from everlearn.evaluation.results import MethodUsed, Results, RunFacts, ScoreTable, Share, Spent, StageCost, Summary
from everlearn.evaluation.samples import Samples, samples_path
from everlearn.evaluation.statistics import percentiles, permutation_test
from everlearn.evaluation.task import CONFIGS, KINDS, Conditions, Task, Work, make_task, register_kind

__all__ = [
    "CONFIGS",
    "KINDS",
    "METRICS",
    "QUANTITIES",
    "BigBench",
    "BlockLosses",
    "ByPerplexity",
    "ByText",
    "Cell",
    "Chat",
    "Checkpoint",
    "Choice",
    "Classification",
    "Codelength",
    "Column",
    "Conditions",
    "Ensemble",
    "Estimate",
    "Generation",
    "HarnessScore",
    "HeldOut",
    "HeldOutText",
    "MethodUsed",
    "Metric",
    "Predictor",
    "Programs",
    "Quantity",
    "Results",
    "RunFacts",
    "Samples",
    "Schema",
    "ScoreTable",
    "Share",
    "Spent",
    "StageCost",
    "Summary",
    "Task",
    "TaskConfig",
    "Work",
    "accuracy",
    "alone_path",
    "block_losses",
    "build_results",
    "classification_cell",
    "evaluate_task",
    "fine_tune",
    "macro_f1",
    "make_task",
    "percentiles",
    "permutation_test",
    "register_kind",
    "register_mean",
    "register_metric",
    "register_quantity",
    "resample",
    "samples_path",
    "set_path",
    "steps_of",
    "summarise",
    "task_path",
    "text_cell",
]
