"""What was learnt and what was forgotten: held-out losses, end tasks, the score matrix and its numbers."""

from everlearn.evaluation.build import build_results
from everlearn.evaluation.cells import LossCell, TaskCell, loss_path, task_path
from everlearn.evaluation.endtasks import evaluate_task, fine_tune, steps_of
from everlearn.evaluation.matrix import ScoreMatrix, summarise
from everlearn.evaluation.metrics import accuracy, macro_f1
from everlearn.evaluation.perplexity import BlockLosses, block_losses
from everlearn.evaluation.results import (
    Cost,
    Estimate,
    Matrix,
    MethodUsed,
    Results,
    RunFacts,
    Share,
    StageCost,
    Summary,
)
from everlearn.evaluation.statistics import paired_bootstrap, permutation_test

__all__ = [
    "BlockLosses",
    "Cost",
    "Estimate",
    "LossCell",
    "Matrix",
    "MethodUsed",
    "Results",
    "RunFacts",
    "ScoreMatrix",
    "Share",
    "StageCost",
    "Summary",
    "TaskCell",
    "accuracy",
    "block_losses",
    "build_results",
    "evaluate_task",
    "fine_tune",
    "loss_path",
    "macro_f1",
    "paired_bootstrap",
    "permutation_test",
    "steps_of",
    "summarise",
    "task_path",
]
