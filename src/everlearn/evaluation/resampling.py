"""Scores of several cells under one bootstrap: the same examples and fine-tunings are drawn for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from everlearn.evaluation.cell import TEXT, Cell
from everlearn.evaluation.held_out_rows import DOCUMENT
from everlearn.evaluation.metrics import Metric, Terms
from everlearn.evaluation.statistics import FEW, RESAMPLES, Floats, drawn_together, draws, generator, multipliers
from everlearn.evaluation.task import KINDS


class Resampled(NamedTuple):
    """Scores under one metric.

    Attributes:
        values: [cells].
        samples: [resamples, cells]; all NaN with fewer than two examples, where there is nothing to resample.
    """

    values: Floats
    samples: Floats


def resample(
    cells: Sequence[Cell], metrics: Sequence[Metric], *, seed: object, resamples: int = RESAMPLES
) -> dict[str, Resampled]:
    """Scores of cells that were measured on the same examples, and a bootstrap of them.

    A resample draws examples, the same ones for every cell, so that differences are paired (B. Efron and R. Tibshirani,
    An Introduction to the Bootstrap, 1993, ch. 8). Rows of one document are drawn together where a cell knows them:
    they are alike, and one by one they would pass for more observations than they are. Of fewer than
    :data:`~everlearn.evaluation.statistics.FEW` rows or documents of text the samples have Student's t
    (:func:`~everlearn.evaluation.statistics.multipliers`). Where a cell was measured several times (fine-tunings), a
    resample draws those too.

    Args:
        cells: at least one; all of the same task and examples (:meth:`Cell.same_examples`).
        metrics: that apply to all of them.
        seed: what the draws depend on.
        resamples: number of resamples.

    Returns:
        Metric → scores.
    """
    fine_tuned, groups = KINDS[cells[0].kind].fine_tunes, None
    if DOCUMENT in cells[0]:
        groups = drawn_together(cells[0][DOCUMENT])
    examples = len(cells[0]) if groups is None else int(groups.max(initial=-1)) + 1
    rng = generator("task" if fine_tuned else "bootstrap", seed)
    # Fine-tunings are drawn as uniform numbers, so that cells with the same seeds draw the same ones.
    lots = rng.random((resamples, max(len(cell.seeds) for cell in cells))) if fine_tuned else None
    samples = {metric.name: np.full((resamples, len(cells)), np.nan) for metric in metrics}
    # All cells at once: what a metric knows of the task is the same for each, only the outcomes differ.
    terms: dict[Terms, Floats] = {each: np.concatenate([each(c) for c in cells]) for each in {m.terms for m in metrics}}
    ends = np.cumsum([len(cell.seeds) for cell in cells])
    start, few = 0, cells[0].kind == TEXT and examples < FEW
    weights = (multipliers(examples, resamples, rng),) if few and examples > 1 else draws(examples, resamples, rng)
    for often in weights if examples > 1 else ():
        chunk = slice(start, start + len(often))
        start = chunk.stop
        often = often if groups is None else often[:, groups]
        sums = {each: (_spread if few else _sums)(often, part) for each, part in terms.items()}
        for metric in metrics:
            with np.errstate(over="ignore"):
                scores = metric.value(sums[metric.terms], cells[0])
            if lots is None:
                samples[metric.name][chunk] = scores
                continue
            for place, own in enumerate(np.split(scores, ends[:-1], axis=1)):
                drawn = (lots[chunk, : own.shape[1]] * own.shape[1]).astype(np.intp)
                samples[metric.name][chunk, place] = np.take_along_axis(own, drawn, axis=1).mean(1)
    return {m.name: Resampled(np.array([m.score(cell) for cell in cells]), samples[m.name]) for m in metrics}


def _spread(weights: Floats, terms: Floats) -> Floats:
    """Sums of a ratio's two terms [repeats, 2, n], of which the first is spread by weights with mean 0."""
    above, below = terms[:, 0], terms[:, 1]
    sums = terms.sum(-1)
    ratio = sums[:, 0] / sums[:, 1]
    spread = sums[:, 0] + weights @ (above - ratio[:, None] * below).T
    return np.stack([spread, np.broadcast_to(sums[:, 1], spread.shape)], axis=-1)


def _sums(often: Floats, terms: Floats) -> Floats:
    """Terms [repeats, k, n], weighted by how often each example is drawn: [draws, repeats, k]."""
    rows = terms.reshape(-1, terms.shape[-1])
    # Counts in float32 are whole numbers far below 2^24: the products are exact, and twice as fast.
    found = (often.astype(rows.dtype, copy=False) @ rows.T).astype(np.float64, copy=False)
    return found.reshape(len(often), *terms.shape[:2])
