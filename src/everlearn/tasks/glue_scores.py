"""Compute the scores of GLUE's tasks (arXiv 1804.07461): each task names its own, and GLUE averages them.

==========================  ===============================================================  ============
``accuracy``                right answers                                                    most tasks
``positive_f1``             2·TP / (2·TP + FP + FN) of one class; 0 if nobody names it       MRPC, QQP
``matthews``                (c n − Σ p t) / √((n² − Σ p²)(n² − Σ t²)), c right answers of    CoLA
                            n, p predicted and t true ones of each class (J. Gorodkin,
                            2004); 0 if all predictions or all labels are the same
``pearson``, ``spearman``   correlation of values, and of their ranks (ties: mean rank);     STS-B
                            undefined, and absent, if all predictions are the same
``matched_accuracy`` …      accuracy on either test part of MNLI                             MNLI
``glue_score``              the mean of those that the task names; undefined ones count as   all
                            0, so that no mean over tasks is better without a task
==========================  ===============================================================  ============

A cell lists the metrics that its task names in the fact ``scores``. It has labels (``truth``, ``predictions``), values
(``target``, ``values``), or options to choose from (``option_nats``), which the fact ``values`` may number.

The ranks of a bootstrap sample are those of the complete test part: a rank is a property of an example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import Floats, Metric, ratio, register_metric

CONSTANT = 1e-12
"""Variance, as a share of the mean square, below which values count as all the same (rounding)."""


class Score(NamedTuple):
    """A metric: its title, its terms [repeats, k, n], its value as a function of their sums [..., k], and k."""

    title: str
    terms: Callable[[Cell], NDArray[Any]]
    value: Callable[[Floats, Cell], Floats]
    width: Callable[[Cell], int]


def _labels(cell: Cell) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the right labels, [n], and the predicted ones, [repeats, n]."""
    if "option_nats" in cell:
        return cell["right_option"], np.argmin(cell["option_nats"], axis=0)[None]
    return cell["truth"], cell["predictions"]


def _values(cell: Cell) -> tuple[Floats, Floats]:
    """Return the right values and the predicted ones, both [repeats, n]."""
    if "option_nats" in cell:
        right, predicted = (np.asarray(cell.facts["values"], np.float64)[labels] for labels in _labels(cell))
    else:
        right, predicted = cell["target"], cell["values"]
    return np.broadcast_to(right, predicted.shape).astype(np.float64), predicted.astype(np.float64)


def _right(cell: Cell) -> NDArray[Any]:
    truth, predicted = _labels(cell)
    right = (predicted == truth).astype(np.float64)
    return np.stack([right, np.ones_like(right)], axis=1)


def _right_of(part: int) -> Callable[[Cell], NDArray[Any]]:
    return lambda cell: _right(cell) * (cell["mismatched"] == part)


def _positives(cell: Cell) -> NDArray[Any]:
    truth, predicted = (labels == cell.facts["positive"] for labels in _labels(cell))
    true = np.broadcast_to(truth, predicted.shape)
    return np.stack([predicted & true, predicted, true], axis=1).astype(np.float64)


def _f1(sums: Floats, cell: Cell) -> Floats:
    total = sums[..., 1] + sums[..., 2]
    return np.divide(2 * sums[..., 0], total, out=np.zeros_like(total), where=total > 0)


def _classes(cell: Cell) -> NDArray[Any]:
    return np.arange(len(cell["option_nats"])) if "option_nats" in cell else np.asarray(cell.facts["classes"])


def _confusion(cell: Cell) -> NDArray[Any]:
    """Return right answers, examples, and predicted and true counts of each class, [repeats, 2 + 2 classes, n]."""
    truth, predicted = _labels(cell)
    classes = _classes(cell)[:, None]
    of_class = predicted[:, None] == classes
    true = np.broadcast_to(truth == classes, of_class.shape)
    return np.concatenate([_right(cell), of_class, true], axis=1)


def _matthews(sums: Floats, cell: Cell) -> Floats:
    right, count = sums[..., 0], sums[..., 1]
    predicted, true = np.split(sums[..., 2:], 2, axis=-1)
    spread = (count**2 - (predicted**2).sum(-1)) * (count**2 - (true**2).sum(-1))
    covariance = right * count - (predicted * true).sum(-1)
    return np.divide(covariance, np.sqrt(spread), out=np.zeros_like(count), where=spread > 0)


def _moments(right: Floats, predicted: Floats) -> Floats:
    """Return 1, x, y, xx, yy and xy of centred values, [repeats, 6, n]; equal values are exactly 0."""
    x, y = (each - each[:, :1] for each in (right, predicted))
    x, y = (each - each.mean(-1, keepdims=True) for each in (x, y))
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)


def _correlation(sums: Floats, cell: Cell) -> Floats:
    count, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread_x, spread_y = count * xx - x * x, count * yy - y * y
    defined = (spread_x > CONSTANT * count * xx) & (spread_y > CONSTANT * count * yy)
    covariance, spread = count * xy - x * y, np.sqrt(spread_x.clip(0)) * np.sqrt(spread_y.clip(0))
    return np.divide(covariance, spread, out=np.full_like(count, np.nan), where=defined)


def _ranked(cell: Cell) -> Floats:
    from scipy.stats import rankdata  # takes a third of a second to import

    right, predicted = _values(cell)
    return _moments(rankdata(right, axis=-1), rankdata(predicted, axis=-1))


SCORES = {
    "accuracy": Score("Accuracy", _right, ratio, lambda cell: 2),
    "positive_f1": Score("F1 of the positive class", _positives, _f1, lambda cell: 3),
    "matthews": Score("Matthews correlation", _confusion, _matthews, lambda cell: 2 + 2 * len(_classes(cell))),
    "pearson": Score("Pearson correlation", lambda cell: _moments(*_values(cell)), _correlation, lambda cell: 6),
    "spearman": Score("Spearman correlation", _ranked, _correlation, lambda cell: 6),
    "matched_accuracy": Score("Accuracy, matched", _right_of(0), ratio, lambda cell: 2),
    "mismatched_accuracy": Score("Accuracy, mismatched", _right_of(1), ratio, lambda cell: 2),
}
"""By the name that a task has in its fact ``scores``."""


def _all_terms(cell: Cell) -> NDArray[Any]:
    return np.concatenate([SCORES[name].terms(cell) for name in cell.facts["scores"]], axis=1)


def _mean(sums: Floats, cell: Cell) -> Floats:
    scores: Sequence[Score] = [SCORES[name] for name in cell.facts["scores"]]
    ends = np.cumsum([score.width(cell) for score in scores])
    parts = np.split(sums, ends[:-1], axis=-1)
    values = np.stack([score.value(part, cell) for score, part in zip(scores, parts, strict=True)])
    return np.asarray(np.where(np.isnan(values), 0.0, values).mean(0))


register_metric(
    Metric("glue_score", "GLUE score", "fraction", True, (), _all_terms, _mean, knows=("scores",), averaged=True),
    before="accuracy",
)
for _name, (_title, _terms, _value, _) in SCORES.items():
    if _name != "accuracy":  # which cells with labels have anyway, and cells with options as `choice_accuracy`
        register_metric(Metric(_name, _title, "fraction", True, (), _terms, _value, named=True))
