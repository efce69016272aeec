"""Compute bootstrap intervals of ratios.

Everything is seeded, vectorised NumPy in float64. The bootstrap draws the examples of one run (held-out documents, test
examples), of which there are many. A handful of runs is too few to draw from: their intervals are in
:mod:`everlearn.comparison.intervals`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everlearn.seeding import seed_for

RESAMPLES = 2000
LEVEL = 0.95
FEW = 30
"""With fewer units than this, bootstrap intervals are too narrow, and Student's t is used."""
_CHUNK = 2**22
"""Maximum number of array elements held at once while drawing."""

Floats = NDArray[np.float64]


def generator(*parts: object) -> np.random.Generator:
    """Return a NumPy generator seeded by names."""
    return np.random.Generator(np.random.PCG64(seed_for(*parts)))


def draws(units: int, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield how often each resample (with replacement) draws each unit, in chunks [b, units] of `resamples` rows."""
    chunk = max(1, _CHUNK // max(units, 1))
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = rng.integers(0, units, (rows, units)) + units * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)


def drawn_together(groups: NDArray[np.integer]) -> NDArray[np.intp]:
    """Assign to each observation the unit with which a bootstrap draws it.

    Observations of one group, such as rows of one document, are similar, and drawn one by one they would give intervals
    that are too narrow. If all observations are of one group, they are themselves the units, and the interval does not
    generalise to other groups.

    Args:
        groups: the group of each observation.

    Returns:
        The unit of each observation, numbered from 0 without gaps.
    """
    names, units = np.unique(groups, return_inverse=True)
    return units if len(names) > 1 else np.arange(len(groups))


def multipliers(units: int, resamples: int, rng: np.random.Generator) -> Floats:
    """Draw values to add to the weight 1 of each unit so that a mean over units follows Student's t.

    A percentile bootstrap of n units covers 49 % with two units and 86 % with five, where it should cover 95 %. With
    these values in place of its counts, the percentiles of Σ_i x_i r_i, for residuals r with sum 0, are ± t_{n−1}
    √(n/(n−1) Σ r²): the usual interval of a mean, and of a ratio by its linear part (A. C. Cameron and D. L. Miller,
    2015, for clusters). Quantities that share a row of them stay paired.

    Returns:
        [resamples, units]; the mean of each row is 0.
    """
    normal = rng.standard_normal((resamples, units))
    normal -= normal.mean(1, keepdims=True)
    scale = np.sqrt(rng.chisquare(units - 1, resamples) / (units - 1))
    return np.asarray(normal / scale[:, None] * np.sqrt(units / (units - 1)))


def percentiles(samples: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the percentile interval over the first axis; NaN if a sample is NaN."""
    tail = (1 - LEVEL) / 2
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(samples, [tail, 1 - tail], axis=0)
    return low, high


def bootstrap_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    groups: NDArray[np.integer] | None = None,
    seed: object,
    resamples: int = RESAMPLES,
) -> Floats:
    """Return bootstrap samples of Σ numerator / Σ denominator over units, for several rows on the same units.

    A resample draws the same units for every row, so that differences between rows are paired (B. Efron and R.
    Tibshirani, An Introduction to the Bootstrap, 1993, ch. 8). With fewer than :data:`FEW` units the draws are replaced
    by :func:`multipliers`.

    Args:
        numerators: [rows, units]; a row may be all NaN (not measured).
        denominators: [rows, units], such as the number of labels per block.
        groups: group of each unit, [units], such as the document of each block: units of one group are drawn together
            (:func:`drawn_together`); None if each unit is a group of its own.
        seed: seed of the draws.
        resamples: number of resamples.

    Returns:
        [resamples, rows]; all NaN if there are fewer than two units.
    """
    above, below = np.atleast_2d(np.asarray(numerators, float)), np.atleast_2d(np.asarray(denominators, float))
    if groups is not None:
        owner = drawn_together(groups)
        above, below = (np.stack([np.bincount(owner, row) for row in rows]) for rows in (above, below))
    units = above.shape[1]
    if units < 2:
        return np.full((resamples, len(above)), np.nan)
    rng = generator("bootstrap", seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        if units < FEW:
            ratio, size = above.sum(1) / below.sum(1), below.sum(1)
            return ratio + multipliers(units, resamples, rng) @ (above - ratio[:, None] * below).T / size
        parts = [(w @ above.T) / (w @ below.T) for w in draws(units, resamples, rng)]
    return np.concatenate(parts)
