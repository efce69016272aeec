"""Scores of several cells under one bootstrap: the same examples and fine-tunings are drawn for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import Metric, Terms
from everlearn.evaluation.statistics import RESAMPLES, Floats, draws, generator
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
    An Introduction to the Bootstrap, 1993, ch. 8); where a cell was measured several times (fine-tunings), it draws
    those too.

    Args:
        cells: at least one; of one kind.
        metrics: that apply to all of them.
        seed: what the draws depend on.
        resamples: number of resamples.

    Returns:
        Metric → scores.
    """
    fine_tuned, examples = KINDS[cells[0].kind].fine_tunes, len(cells[0])
    rng = generator("task" if fine_tuned else "bootstrap", seed)
    # Fine-tunings are drawn as uniform numbers, so that cells with the same seeds draw the same ones.
    lots = rng.random((resamples, max(len(cell.seeds) for cell in cells))) if fine_tuned else None
    samples = {metric.name: np.full((resamples, len(cells)), np.nan) for metric in metrics}
    terms: dict[Terms, list[Floats]] = {each: [each(cell) for cell in cells] for each in {m.terms for m in metrics}}
    start = 0
    for often in draws(examples, resamples, rng) if examples > 1 else ():
        chunk = slice(start, start + len(often))
        start = chunk.stop
        sums = {each: _sums(often, parts) for each, parts in terms.items()}
        for metric in metrics:
            for place, (cell, total) in enumerate(zip(cells, sums[metric.terms], strict=True)):
                with np.errstate(over="ignore"):
                    scores = metric.value(total, cell)
                if lots is not None:
                    drawn = (lots[chunk, : len(cell.seeds)] * len(cell.seeds)).astype(np.intp)
                    samples[metric.name][chunk, place] = np.take_along_axis(scores, drawn, axis=1).mean(1)
                else:
                    samples[metric.name][chunk, place] = scores.mean(1)
    return {m.name: Resampled(np.array([m.score(cell) for cell in cells]), samples[m.name]) for m in metrics}


def _sums(often: Floats, parts: Sequence[Floats]) -> list[Floats]:
    """Terms [repeats, k, n] of each cell, weighted by how often each example is drawn: [draws, repeats, k]."""
    rows = [part.reshape(-1, part.shape[-1]) for part in parts]
    stacked = np.concatenate(rows)
    # Counts in float32 are whole numbers far below 2^24: the products are exact, and twice as fast.
    sums = (often.astype(stacked.dtype, copy=False) @ stacked.T).astype(np.float64)
    ends = np.cumsum([len(part) for part in rows])[:-1]
    return [
        np.asarray(found).reshape(len(often), *part.shape[:2])
        for found, part in zip(np.split(sums, ends, axis=1), parts, strict=True)
    ]
