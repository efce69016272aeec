"""Estimate a mean over runs and tasks, where every run has a number for every task and both are random samples.

A run can be better on all tasks at once, and a task can be easier in all runs at once. So the single numbers are not
independent observations, and a test that treats them as independent finds differences where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from everlearn.evaluation.statistics import LEVEL

_ROUNDING = 1e-12
"""Relative size below which a standard error is only rounding: the numbers are equal."""


@dataclass(frozen=True)
class CrossedMean:
    """A mean with the uncertainty that both runs and tasks bring.

    Attributes:
        value: the mean.
        error: its standard error; None where there are fewer than two runs or two tasks.
        freedom: degrees of freedom of the error.
    """

    value: float
    error: float | None = None
    freedom: float = 1.0

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        """Return the ends of the confidence interval; None if the standard error is unknown."""
        if self.error is None:
            return None
        reach = self.error * float(student.ppf((1 + level) / 2, self.freedom))
        return self.value - reach, self.value + reach

    def p_value(self, at: float = 0.0) -> float | None:
        """Return the two-sided p-value of the hypothesis that the true mean is `at`; None if the error is unknown.

        It is below 0.05 exactly if the 95 % interval does not contain `at`.
        """
        if self.error is None:
            return None
        distance = abs(self.value - at)
        if self.error == 0:
            return 1.0 if distance == 0 else 0.0
        return float(2 * student.sf(distance / self.error, self.freedom))


def crossed_mean(values: Sequence[Mapping[str, float]]) -> CrossedMean:
    """Return the mean over runs and tasks, both random.

    With V_tasks the variance that the mean has because tasks are drawn, and V_runs the same for runs,
    (mean)² / (V_tasks + V_runs) is min F′ of H. H. Clark (The language-as-fixed-effect fallacy, Journal of Verbal
    Learning and Verbal Behavior 12, 1973), with Satterthwaite's degrees of freedom. It is conservative: the part of
    single run-task deviations is counted in both. Runs may lack tasks (the last domain of an order has no forgetting);
    the variances are then those of sums over a task's, or a run's, deviations.

    Args:
        values: for each run, task → number.

    Raises:
        ValueError: there is no number.
    """
    tasks = list(dict.fromkeys(task for row in values for task in row))
    table = np.array([[row.get(task, np.nan) for task in tasks] for row in values], dtype=np.float64)
    known = ~np.isnan(table)
    if not known.any():
        raise ValueError("There is nothing to take the mean of.")
    mean = float(table[known].mean())
    deviations = np.where(known, table - mean, 0.0)
    parts: list[tuple[float, int]] = []
    for axis in (0, 1):
        sums = deviations.sum(axis)[known.any(axis)]
        groups = len(sums)
        if groups < 2:
            return CrossedMean(mean)
        parts.append((float(np.square(sums).sum()) * groups / (groups - 1) / known.sum() ** 2, groups - 1))
    variance = sum(part for part, _ in parts)
    if np.sqrt(variance) <= _ROUNDING * max(1e-3, np.abs(table[known]).max()):  # all equal, but for rounding
        return CrossedMean(mean, 0.0)
    return CrossedMean(mean, float(np.sqrt(variance)), float(variance**2 / sum(v * v / n for v, n in parts)))


def mean_of_these(runs: Mapping[tuple[int | None, int | None], Mapping[str, float]]) -> CrossedMean:
    """Return the mean over runs of these tasks and these orders: seeds are the only sample.

    With y the mean over a run's tasks: m = (1/O) Σ_o ȳ_o over O orders; s² = Σ_o Σ_s (y_os − ȳ_o)² / (R − O) over R
    runs; the error is √((1/O²) Σ_o s²/n_o), with R − O degrees of freedom.

    Args:
        runs: order and seed of each run → task → number.

    Raises:
        ValueError: there is no number.
    """
    orders: dict[int | None, list[float]] = {}
    for (order, _), row in runs.items():
        if row:
            orders.setdefault(order, []).append(float(np.mean(list(row.values()))))
    if not orders:
        raise ValueError("There is nothing to take the mean of.")
    means = [float(np.mean(values)) for values in orders.values()]
    mean, freedom = float(np.mean(means)), sum(map(len, orders.values())) - len(orders)
    if freedom < 1:
        return CrossedMean(mean)
    deviations = [value - own for own, values in zip(means, orders.values(), strict=True) for value in values]
    spread = float(np.square(deviations).sum()) / freedom
    error = float(np.sqrt(spread * sum(1 / len(values) for values in orders.values()))) / len(orders)
    return CrossedMean(mean, error if error > _ROUNDING * max(1e-3, abs(mean)) else 0.0, freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p-values of one family, in the order given (S. Holm, 1979)."""
    order, adjusted, highest = np.argsort(p_values, kind="stable"), [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = highest
    return adjusted
