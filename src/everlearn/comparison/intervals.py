"""Compute intervals over runs with Student's t, for every table of several runs.

A run that is trained again with another seed, or on another order of domains, is another draw, while the held-out text
stays the same. So the number of observations is the number of runs, and the interval tells how much other runs could
change the number. With few runs a bootstrap over them is far too narrow (for two runs it is their range, which covers
50 %); Student's t accounts for the small number. Within one run the examples are the sample: see
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
"""Relative rounding error of equal numbers."""


@dataclass(frozen=True)
class Difference:
    """The difference of two means over runs.

    Attributes:
        estimate: the difference with its interval; without an interval for one run against one run.
        p_value: two-sided, from the same t distribution: below 0.05 exactly if the 95 % interval excludes 0.
        pairs: number of pairs of runs over which it is the mean; 0 if the runs are not paired.
    """

    estimate: Estimate
    p_value: float | None
    pairs: int


def over_runs(values: Sequence[float]) -> Estimate:
    """Return the mean over runs with its 95 % interval, with n − 1 degrees of freedom; one run has no interval.

    Raises:
        ValueError: there are no values.
    """
    return _estimate(*_mean(np.asarray(values, np.float64)))


def difference(ours: Mapping[Unit, float], reference: Mapping[Unit, float]) -> Difference:
    """Return the mean of `ours` minus the mean of `reference`.

    Runs of the same unit (seed and order) are paired, since what they have in common cancels: Student's t over the
    pairs, leaving out runs without a partner. With fewer than two pairs the runs are treated as two independent samples
    of equal variance, with n + m − 2 degrees of freedom, which also works for one run against several. One run against
    one run has no interval.

    Args:
        ours: unit → number of each run.
        reference: the same for the runs with which they are compared.

    Raises:
        ValueError: one side has no numbers.
    """
    pairs = [ours[unit] - reference[unit] for unit in ours if unit in reference]
    if len(pairs) > 1:
        mean, error, freedom = _mean(np.asarray(pairs, np.float64))
        return Difference(_estimate(mean, error, freedom), _p_value(mean, error, freedom), len(pairs))
    sides = [np.fromiter(side.values(), np.float64) for side in (ours, reference)]
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
    """Return the mean, its standard error and the degrees of freedom of that error."""
    if not len(values):
        raise ValueError("A mean over runs needs at least one run.")
    mean, freedom = float(values.mean()), len(values) - 1
    if freedom < 1:
        return mean, None, 0
    return mean, _rounded(float(values.std(ddof=1)) / math.sqrt(len(values)), np.abs(values)), freedom


def _rounded(error: float, *sizes: Floats) -> float:
    """Return an error, or 0 if it is only the rounding error of equal numbers."""
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
