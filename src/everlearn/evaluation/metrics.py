"""Accuracy and F1 of classifications, and their bootstrap over test examples and fine-tuning seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everlearn.evaluation.cells import TaskCell
from everlearn.evaluation.statistics import RESAMPLES, Floats, draws, generator

METRICS = ("accuracy", "macro_f1", "f1")
"""``f1`` is the F1 that each task asks for: macro-F1, or micro-F1, which is accuracy where an example has one label and
every label counts. DAS (arXiv 2302.03241) tabulates it so, with micro-F1 for ChemProt."""


def accuracy(truth: ArrayLike, predictions: ArrayLike) -> float:
    """Share of examples whose label is predicted."""
    return float(np.mean(np.asarray(truth) == np.asarray(predictions)))


def macro_f1(truth: ArrayLike, predictions: ArrayLike, classes: ArrayLike) -> float:
    """Unweighted mean of the F1 of `classes`: 2·TP / (predicted + true), and 0 for a class with neither.

    `classes` are the labels of the *training* set: a class that could be learnt counts even where the test set or the
    predictions miss it, so that the same classes are averaged at every checkpoint.
    """
    wanted = np.asarray(classes)
    hits, predicted, true = _indicators(np.asarray(truth), np.asarray(predictions)[None], wanted)
    counts = (part.sum(0, dtype=np.float64) for part in (hits, predicted, true))
    return float(_f1(*counts).mean())


def task_scores(
    cells: Sequence[TaskCell | None], *, seed: object, resamples: int = RESAMPLES
) -> dict[str, tuple[Floats, Floats]]:
    """Scores of one end task at several checkpoints, averaged over seeds, with a bootstrap.

    A resample draws test examples and fine-tuning seeds, the same ones for every checkpoint (paired). With one seed
    only examples vary.

    Args:
        cells: one per checkpoint on the same test set; None where it was not measured.
        seed: what the draws depend on.
        resamples: number of resamples.

    Returns:
        Each of :data:`METRICS`: values [rows] and samples [resamples, rows], NaN where not measured.
    """
    values = {metric: np.full(len(cells), np.nan) for metric in METRICS}
    samples = {metric: np.full((resamples, len(cells)), np.nan) for metric in METRICS}
    measured = [(row, cell) for row, cell in enumerate(cells) if cell is not None]
    if not measured:
        return {metric: (values[metric], samples[metric]) for metric in METRICS}
    for row, cell in measured:
        for metric, per_seed in _weighted(cell, np.ones((1, len(cell.truth)))).items():
            values[metric][row] = per_seed.mean()
    units = len(measured[0][1].truth)
    if units > 1:
        rng = generator("task", seed)
        # Seeds are drawn as uniform numbers, so that checkpoints with the same seeds draw the same ones.
        lots = rng.random((resamples, max(len(cell.predictions) for _, cell in measured)))
        start = 0
        for drawn_often in draws(units, resamples, rng):
            chunk = slice(start, start + len(drawn_often))
            start = chunk.stop
            weights = drawn_often.astype(np.float32)
            for row, cell in measured:
                seeds = len(cell.predictions)
                drawn = (lots[chunk, :seeds] * seeds).astype(np.intp)
                for metric, per_seed in _weighted(cell, weights).items():
                    samples[metric][chunk, row] = np.take_along_axis(per_seed, drawn, axis=1).mean(1)
    return {metric: (values[metric], samples[metric]) for metric in METRICS}


def _indicators(
    truth: NDArray[np.int64], predictions: NDArray[np.int64], classes: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Per example: hit [n, seeds, classes], predicted [n, seeds, classes], true [n, 1, classes]."""
    predicted = predictions.T[:, :, None] == classes
    true = truth[:, None, None] == classes
    return (predicted & true).astype(np.float32), predicted.astype(np.float32), true.astype(np.float32)


def _f1(hits: Floats, predicted: Floats, true: Floats) -> Floats:
    total = predicted + true
    return np.divide(2 * hits, total, out=np.zeros_like(hits), where=total > 0)


def _weighted(cell: TaskCell, weights: Floats | NDArray[np.float32]) -> dict[str, Floats]:
    """Scores per seed when example i counts weights[b, i] times: metric → [b, seeds]."""
    # Counts are whole numbers far below 2^24: float32 products are exact and twice as fast.
    weights = weights.astype(np.float32, copy=False)
    correct = (cell.predictions == cell.truth).T.astype(np.float32)
    parts = _indicators(cell.truth, cell.predictions, cell.classes)
    hits, predicted, true = (np.tensordot(weights, part, axes=1).astype(np.float64) for part in parts)
    right, total = (weights @ correct).astype(np.float64), len(cell.truth)  # a resample is as large as the test set
    correctly, macro = right / total, _f1(hits, predicted, np.broadcast_to(true, hits.shape)).mean(-1)
    return {"accuracy": correctly, "macro_f1": macro, "f1": correctly if cell.f1 == "micro" else macro}
