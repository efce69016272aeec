"""Compute BIG-bench's scores: the grade of the chosen option, and the normalised score that is averaged over tasks.

With s the task's preferred score, l the score that counts as 0 and h the one that counts as 100, the normalised score
is 100 (s − l) / (h − l) (arXiv 2206.04615, section 3.1): 0 for guessing, and negative below that. For a task with
subtasks it is the mean over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import Floats, Metric, register_mean, register_metric


def _by_subtask(cell: Cell) -> NDArray[Any]:
    """Return the score and the number of the examples of each subtask, [1, 2 subtasks, n]."""
    own = (cell["subtask"] == np.arange(len(cell.facts["low"]))[:, None]).astype(np.float64)
    return np.concatenate([own * cell["score"], own])[None]


def _normalised(sums: Floats, cell: Cell) -> Floats:
    total, count = np.split(sums, 2, axis=-1)
    low, high = np.asarray(cell.facts["low"]), np.asarray(cell.facts["high"])
    there = count > 0  # a resample may have no example of a small subtask
    scores = np.divide(total, count, out=np.zeros_like(total), where=there)
    return np.asarray((100 * (scores - low) / (high - low) * there).sum(-1) / np.maximum(there.sum(-1), 1))


register_metric(
    Metric("normalised", "Normalised score", "points", True, ("score", "subtask"), _by_subtask, _normalised)
)
register_mean("multiple_choice_grade", "Multiple-choice grade", "grade")


def limits(scores: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the score of guessing and the best possible score over examples whose options have these scores.

    0 and 1 if there are no options.
    """
    if not scores:
        return 0.0, 1.0
    return float(np.mean([np.mean(own) for own in scores])), float(np.mean([max(own) for own in scores]))
