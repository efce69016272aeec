"""Bootstrap the scores of several cells together: the same examples and fine-tunings are drawn for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from everlearn.evaluation.cell import TEXT, Cell
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.held_out_rows import DOCUMENT
from everlearn.evaluation.metrics import Metric, Terms
from everlearn.evaluation.quantities import estimate
from everlearn.evaluation.statistics import FEW, RESAMPLES, Floats, drawn_together, draws, generator, multipliers
from everlearn.evaluation.task import TASK_KINDS


class Resampled(NamedTuple):
    """Scores under one metric.

    Attributes:
        values: scores, [cells].
        samples: bootstrap samples, [resamples, cells]; all NaN if there are fewer than two examples.
    """

    values: Floats
    samples: Floats

    def estimate(self, of: Callable[[Floats], Floats]) -> Estimate:
        """Return a number of scores [..., cells], such as a difference of two, with its interval."""
        return estimate(of(self.values), of(self.samples))

    def of(self, cell: int) -> Estimate:
        """Return the score of a cell, with its interval."""
        return self.estimate(lambda u: u[..., cell])

    def change(self, after: int = 1, before: int = 0) -> Estimate:
        """Return the difference of two cells, paired, with its interval."""
        return self.estimate(lambda u: u[..., after] - u[..., before])


def resample(
    cells: Sequence[Cell], metrics: Sequence[Metric], *, seed: object, resamples: int = RESAMPLES
) -> dict[str, Resampled]:
    """Return the scores of cells that were measured on the same examples, and bootstrap samples of them.

    A resample draws the same examples for every cell, so that differences are paired (B. Efron and R. Tibshirani, An
    Introduction to the Bootstrap, 1993, ch. 8). Rows of one document are drawn together if documents are known: they
    are similar, and drawn one by one they would give intervals that are too narrow. For text with fewer than
    :data:`~everlearn.evaluation.statistics.FEW` rows or documents the samples follow Student's t
    (:func:`~everlearn.evaluation.statistics.multipliers`). If a cell has several fine-tunings, a resample draws those
    too.

    Args:
        cells: at least one; all of the same task and examples (:meth:`Cell.same_examples`).
        metrics: metrics that apply to all of them.
        seed: seed of the draws.
        resamples: number of resamples.

    Returns:
        The scores of each metric.
    """
    fine_tuned, groups = TASK_KINDS[cells[0].kind].fine_tunes, None
    if DOCUMENT in cells[0]:
        groups = drawn_together(cells[0][DOCUMENT])
    examples = len(cells[0]) if groups is None else int(groups.max(initial=-1)) + 1
    rng = generator("task" if fine_tuned else "bootstrap", seed)
    # Fine-tunings are drawn as uniform numbers, so that cells with the same seeds draw the same ones.
    fine_tunings = rng.random((resamples, max(len(cell.seeds) for cell in cells))) if fine_tuned else None
    samples = {metric.name: np.full((resamples, len(cells)), np.nan) for metric in metrics}
    # All cells at once: facts of the task are the same for each, only the outcomes differ.
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
            if fine_tunings is None:
                samples[metric.name][chunk] = scores
                continue
            for place, own in enumerate(np.split(scores, ends[:-1], axis=1)):
                drawn = (fine_tunings[chunk, : own.shape[1]] * own.shape[1]).astype(np.intp)
                samples[metric.name][chunk, place] = np.take_along_axis(own, drawn, axis=1).mean(1)
    return {m.name: Resampled(np.array([m.score(cell) for cell in cells]), samples[m.name]) for m in metrics}


def _spread(weights: Floats, terms: Floats) -> Floats:
    """Return sums of a ratio's two terms [repeats, 2, n]; the first is perturbed by weights with mean 0."""
    above, below = terms[:, 0], terms[:, 1]
    sums = terms.sum(-1)
    ratio = sums[:, 0] / sums[:, 1]
    spread = sums[:, 0] + weights @ (above - ratio[:, None] * below).T
    return np.stack([spread, np.broadcast_to(sums[:, 1], spread.shape)], axis=-1)


def _sums(often: Floats, terms: Floats) -> Floats:
    """Sum the terms [repeats, k, n], weighted by how often each example is drawn: [draws, repeats, k]."""
    rows = terms.reshape(-1, terms.shape[-1])
    # Counts are integers far below 2^24, so float32 is exact for them, and twice as fast.
    products = (often.astype(rows.dtype, copy=False) @ rows.T).astype(np.float64, copy=False)
    return products.reshape(len(often), *terms.shape[:2])
