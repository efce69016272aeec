"""Intervals where runs are the sample: Student's t, for every table of several runs.

A run that is trained again with another seed, or on another order of domains, is another draw; the held-out text is
the same each time. So the number of observations is the number of runs, and the interval says how far other runs could
move the number. With few runs a bootstrap over them is far too narrow (of two runs it is their range, which covers
50 %); Student's t knows how little two runs say. Inside one run the examples are the sample: see
:mod:`everlearn.evaluation.resampling`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.statistics import LEVEL, Floats

Unit = TypeVar("Unit", bound=Hashable)
_ROUNDING = 1e-12
"""Of numbers that are all equal."""


@dataclass(frozen=True)
class Difference:
    """The difference of two means over runs.

    Attributes:
        estimate: the difference with its interval; without one where there are only one run and another.
        p_value: two-sided, of the same t: below 0.05 exactly where the 95 % interval leaves out 0.
        pairs: pairs of runs that it is the mean of; 0 where the runs are not paired.
    """

    estimate: Estimate
    p_value: float | None
    pairs: int


def over_runs(values: Sequence[float]) -> Estimate:
    """Return the mean over runs with its 95 % interval, n − 1 degrees of freedom; of one run the value alone.

    Raises:
        ValueError: there is no value.
    """
    return _estimate(*_mean(np.asarray(values, np.float64)))


def difference(ours: Mapping[Unit, float], theirs: Mapping[Unit, float]) -> Difference:
    """Ours minus theirs.

    Runs of the same unit (seed and order) are paired, since what they have in common cancels: Student's t over the
    pairs, of which runs without a partner are no part. With fewer than two pairs the runs are two independent samples
    of equal variance, with n + m − 2 degrees of freedom, which also holds for one run against several. One run against
    another has no interval here.

    Args:
        ours: number of each run, by what pairs it.
        theirs: the same of what they are compared with.

    Raises:
        ValueError: one side has no number.
    """
    pairs = [ours[unit] - theirs[unit] for unit in ours if unit in theirs]
    if len(pairs) > 1:
        mean, error, freedom = _mean(np.asarray(pairs, np.float64))
        return Difference(_estimate(mean, error, freedom), _p_value(mean, error, freedom), len(pairs))
    sides = [np.fromiter(side.values(), np.float64) for side in (ours, theirs)]
    if not all(len(side) for side in sides):
        raise ValueError("A difference needs at least one run on each side.")
    mean = float(sides[0].mean() - sides[1].mean())
    freedom = len(sides[0]) + len(sides[1]) - 2
    if freedom < 1:
        return Difference(Estimate(mean), None, len(pairs))
    variance = sum(float(np.square(side - side.mean()).sum()) for side in sides) / freedom
    error = _rounded(math.sqrt(variance * sum(1 / len(side) for side in sides)), *map(np.abs, sides))
    return Difference(_estimate(mean, error, freedom), _p_value(mean, error, freedom), 0)


def _mean(values: Floats) -> tuple[float, float | None, int]:
    """Mean, its standard error and the degrees of freedom of that."""
    if not len(values):
        raise ValueError("A mean over runs needs at least one run.")
    mean, freedom = float(values.mean()), len(values) - 1
    if freedom < 1:
        return mean, None, 0
    return mean, _rounded(float(values.std(ddof=1)) / math.sqrt(len(values)), np.abs(values)), freedom


def _rounded(error: float, *sizes: Floats) -> float:
    """Return an error, or 0 where it is nothing but the rounding of equal numbers."""
    return error if error > _ROUNDING * max(float(size.max()) for size in sizes) else 0.0


def _estimate(mean: float, error: float | None, freedom: int) -> Estimate:
    if error is None:
        return Estimate(mean)
    from scipy.special import stdtrit  # scipy.stats would take a third of a second to import

    half = error * float(stdtrit(freedom, (1 + LEVEL) / 2))
    return Estimate(mean, mean - half, mean + half)


def _p_value(mean: float, error: float | None, freedom: int) -> float | None:
    if error is None:
        return None
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(mean) / error))
