"""The score matrix and every number that is derived from it.

R[i, c] is the score of column c after i domains; row 0 is the untouched base model. With U = R where higher is better
and U = −R where lower is better, a column of the domain learnt as number j, and T domains learnt so far:

=================  ============================================  ==========================================
number             column c of domain j                          source
=================  ============================================  ==========================================
learnt             U[j,c] − U[0,c]              for 1 ≤ j ≤ T    just learnt against the base model
forgotten          U[j,c] − U[T,c]              for 1 ≤ j < T    DAS, arXiv 2302.03241, forgetting rate
forgotten_max      max(U[j..T,c]) − U[T,c]      for 1 ≤ j < T    RWalk, arXiv 1801.10112, eq. 3, with m ≥ j
backward_transfer  U[T,c] − U[j,c]              for 1 ≤ j < T    GEM, arXiv 1706.08840, eq. 3
forward_transfer   U[j−1,c] − U[0,c]            for 2 ≤ j ≤ T+1  GEM, eq. 4, against the base model
general_drift      U[0,c] − U[T,c]              no domain        general text and tasks without a domain
average            R[T,c]                       for 1 ≤ j ≤ T    GEM, eq. 2
=================  ============================================  ==========================================

One sign: forgotten and drift above 0 are bad, learnt and transfer above 0 are good, for every metric. A mean is the
mean over all columns that the range of j names, and absent when one of them was not measured. The *max* form is never
negative, so its interval does not reach below 0 even where nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from everlearn.evaluation.statistics import Floats, Interval, percentiles

MEAN = "mean"


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """One metric's scores, with a bootstrap of all of them.

    Attributes:
        columns: names of held-out sets or end tasks.
        stages: for each column the row at which its domain has just been learnt; None for a general column.
        values: [rows, columns]; NaN where nothing was measured.
        samples: [resamples, rows, columns]; the rows of a column are resampled together (paired), the columns
            independently of each other.
        higher_is_better: False for losses.
        unit: of the values.
    """

    columns: tuple[str, ...]
    stages: tuple[int | None, ...]
    values: Floats
    samples: Floats
    higher_is_better: bool
    unit: str

    @property
    def last(self) -> int:
        """T: how many domains have been learnt at the last row."""
        return len(self.values) - 1

    def column(self, index: int) -> tuple[Floats, Floats]:
        """U of one column: values [rows], samples [resamples, rows]."""
        sign = 1.0 if self.higher_is_better else -1.0
        return sign * self.values[:, index], sign * self.samples[:, :, index]


@dataclass(frozen=True)
class Number:
    """A derived number: where it exists, and how it follows from a column.

    Attributes:
        applies: (j, T) → whether a column of stage j has it.
        formula: (U [..., rows], j, T) → [...].
        signed: computed from U; otherwise from the scores as they are.
        mean: whether a mean over columns makes sense.
        columns: whether each column's own number is given.
    """

    applies: Callable[[int | None, int], bool]
    formula: Callable[[Floats, int, int], Floats]
    signed: bool = True
    mean: bool = True
    columns: bool = True


def _forgotten(u: Floats, j: int, last: int) -> Floats:
    return u[..., j] - u[..., last]


def _forgotten_max(u: Floats, j: int, last: int) -> Floats:
    between = u[..., j : last + 1]
    best = np.where(np.isnan(between), -np.inf, between).max(-1)  # a row in between may not have been measured
    return np.where(np.isnan(u[..., j]), np.nan, best) - u[..., last]


def _seen(j: int | None, last: int) -> bool:
    return j is not None and 1 <= j <= last


def _earlier(j: int | None, last: int) -> bool:
    return j is not None and 1 <= j < last


NUMBERS: dict[str, Number] = {
    "learnt": Number(_seen, lambda u, j, last: u[..., j] - u[..., 0]),
    "forgotten": Number(_earlier, _forgotten),
    "forgotten_max": Number(_earlier, _forgotten_max),
    "backward_transfer": Number(_earlier, lambda u, j, last: -_forgotten(u, j, last)),
    "forward_transfer": Number(
        lambda j, last: j is not None and 2 <= j <= last + 1, lambda u, j, last: u[..., j - 1] - u[..., 0]
    ),
    "forgetting_rate": Number(_earlier, _forgotten, columns=False),
    "general_drift": Number(
        lambda j, last: j is None and last > 0, lambda u, j, last: u[..., 0] - u[..., last], mean=False
    ),
    "average": Number(_seen, lambda r, j, last: r[..., last], signed=False, columns=False),
}


def summarise(scores: ScoreMatrix) -> dict[str, dict[str, Interval]]:
    """Every derived number with its interval: number → column (and ``mean``) → interval; absent where not known."""
    with np.errstate(invalid="ignore"):  # perplexities too large for a float
        return {name: _number(scores, number) for name, number in NUMBERS.items()}


def interval(value: Floats | float, samples: Floats) -> Interval | None:
    """A finite number with its percentile interval, or None."""
    if not np.isfinite(value):
        return None
    low, high = percentiles(samples)
    return Interval(float(value), float(low), float(high))


def _number(scores: ScoreMatrix, number: Number) -> dict[str, Interval]:
    last, result = scores.last, {}
    values: list[Floats] = []
    samples: list[Floats] = []
    for index, (name, stage) in enumerate(zip(scores.columns, scores.stages, strict=True)):
        if not number.applies(stage, last):
            continue
        value, sample = (
            scores.column(index) if number.signed else (scores.values[:, index], scores.samples[:, :, index])
        )
        values.append(number.formula(value, stage or 0, last))
        samples.append(number.formula(sample, stage or 0, last))
        own = interval(values[-1], samples[-1])
        if number.columns and own is not None:
            result[name] = own
    if number.mean and values and (mean := interval(_mean(values), _mean(samples))) is not None:
        result[MEAN] = mean
    return result


def _mean(parts: Sequence[Floats]) -> Floats:
    return np.mean(np.stack(parts), axis=0)
