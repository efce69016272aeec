"""Define the quantities that are derived from scores: learnt, forgotten, transferred and others.

R[i, c] is the score of column c after i domains; row 0 is the untouched base model. U = R if higher is better, and U =
−R if lower is better. For a column of the domain learnt as number j, and T domains learnt so far:

=================  ============================================  ==========================================
quantity           column c of domain j                          source
=================  ============================================  ==========================================
learnt             U[j,c] − U[0,c]              for 1 ≤ j ≤ T    just learnt against the base model
forgotten          U[j,c] − U[T,c]              for 1 ≤ j < T    DAS, arXiv 2302.03241, forgetting rate
gained             U[T,c] − U[0,c]              for 0 ≤ j ≤ T    learnt − forgotten: what is left at the end
forgotten_max      max(U[j..T,c]) − U[T,c]      for 1 ≤ j < T    RWalk, arXiv 1801.10112, eq. 3, with m ≥ j
backward_transfer  U[T,c] − U[j,c]              for 1 ≤ j < T    GEM, arXiv 1706.08840, eq. 3
forward_transfer   U[j−1,c] − U[0,c]            for 2 ≤ j ≤ T+1  GEM, eq. 4, against the base model
forgetting_rate    as forgotten, the mean only  for 1 ≤ j < T    DAS
general_drift      U[0,c] − U[T,c]              no domain        general text and tasks without a domain
average            R[T,c]                       for 0 ≤ j ≤ T    GEM, eq. 2
just_learnt        R[j,c]                       for 1 ≤ j ≤ T    the diagonal of GEM's matrix
general_average    R[T,c]                       no domain        general text and tasks without a domain
share_forgotten …  (R[j,c] − R[T,c]) / |R[j,c]|  for 1 ≤ j < T   Arora et al., ALTA 2019, standardised accuracy only
=================  ============================================  ==========================================

j is 0 for a domain that has no row of its own, for example if all domains were learnt together.

Signs are the same for every metric: positive forgetting and drift are losses, positive learning and transfer are gains.
A mean is taken over all columns in the range of j, and is absent if one of them was not measured. The *max* form is
never negative, so its interval never goes below 0, even if nothing was forgotten. It is absent if a row from j to T was
not measured (`evaluation.columns: own`): the maximum over some of the rows would be another number.

The study of LSTM and CNN (Arora et al., ALTA 2019) measures forgetting as a share of what was known, on standardised
accuracies (:data:`everlearn.evaluation.metrics.STANDARDISED`): f_j, and per later step 1/(T−1) Σ f_j / (T−j). Its code
has two conventions. In the paper's branch accuracies are not clipped, and for R[j,c] = 0 the difference is divided by 1
(``share_forgotten``). In its master branch they are clipped to [0, 1], and f_j = 1 for a task that was never learnt
(``share_forgotten_clipped``). Each also exists ``_per_step``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from everlearn.errors import PluginError
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.metrics import STANDARDISED
from everlearn.evaluation.statistics import Floats, percentiles
from everlearn.plugins import Registry

MEAN = "mean"
TOLERATED_DRIFT = 0.02
"""Largest general drift, in bits per byte, of a run that is recommended, by default (see docs/evaluation.md)."""


class Scores:
    """U of one column: ``scores[row]`` is its score in that row, NaN if it was not measured.

    That is one number, or an array of bootstrap samples. ``scores[1:4]`` has those of rows 1, 2 and 3 along the first
    axis.

    Args:
        rows: the measured rows.
        array: their scores, [..., len(rows)].
    """

    def __init__(self, rows: Sequence[int], array: Floats) -> None:
        self.place = {row: position for position, row in enumerate(rows)}
        self.array = array

    def __getitem__(self, row: int | slice) -> Floats:
        if isinstance(row, slice):
            if row.stop is None or min(row.start or 0, row.stop) < 0:
                raise IndexError("rows of scores are counted from 0 and have an end, as in scores[1:stage]")
            each = [self[number] for number in range(row.start or 0, row.stop, row.step or 1)]
            return np.array(each).reshape(len(each), *self.array.shape[:-1])
        if row not in self.place:
            return np.full(self.array.shape[:-1], np.nan)
        return np.asarray(self.array[..., self.place[row]])


Formula = Callable[[Scores, int, int], Floats]


@dataclass(frozen=True)
class Quantity:
    """A number that is derived from the scores of a column.

    Attributes:
        key: name in results.
        title: name in tables.
        higher_is_better: whether higher is better; None for a plain score, whose direction is the metric's.
        better: the words for a run that is clearly better at it, such as "learnt more".
        worse: the words for a run that is clearly worse.
        meaning: a sentence or two for a reader.
        applies: (j, T) → whether a column of stage j has it; j is None for a general column.
        formula: (U, j, T) → the number.
        averaged: whether a mean over columns makes sense.
        columns: whether the numbers of single columns are kept in results.
        recorded: whether a run's results and report have it; otherwise only tables of grids do, from the scores.
        gain: the words for a negative loss: if two runs both gained, neither "forgot more".
        of_metric: the only metric from which it is derived; None for all.
    """

    key: str
    title: str
    higher_is_better: bool | None
    better: str
    worse: str
    meaning: str
    applies: Callable[[int | None, int], bool]
    formula: Formula
    averaged: bool = True
    columns: bool = True
    recorded: bool = True
    gain: str = ""
    of_metric: str | None = None

    @property
    def signed(self) -> bool:
        """Return whether it is a change, computed from U, rather than a plain score."""
        return self.higher_is_better is not None

    def of(self, scores: Scores, stage: int | None, last: int, higher_is_better: bool) -> Floats:
        """Return the number of a column from its scores R; the quantity must apply to it.

        Raises:
            PluginError: the formula fails, or its result has another shape than a score.
        """
        turned = self.signed and not higher_is_better
        u = Scores(tuple(scores.place), -1.0 * scores.array) if turned else scores
        try:
            with np.errstate(invalid="ignore"):  # of perplexities too large for a float
                value = self.formula(u, stage or 0, last)
        except Exception as error:
            raise self._faulty(f"its formula fails: {type(error).__name__}: {error}") from error
        if np.shape(value) != scores.array.shape[:-1]:
            raise self._faulty(f"its formula returns {np.shape(value)} for scores of shape {scores.array.shape[:-1]}")
        return value

    def _faulty(self, why: str) -> PluginError:
        module = getattr(self.formula, "__module__", "")
        return PluginError(f"The quantity '{self.key}' of `{module}` cannot be computed: {why.rstrip('.')}.")

    def check(self) -> None:
        """Compute it on made-up scores of 0 to 3 domains, since real ones exist only after a training.

        Raises:
            PluginError: it fails, or is never a number.
        """
        applied, known = False, False
        for last, samples in itertools.product((0, 1, 3), ((), (5,))):
            scores = Scores(range(last + 1), np.random.default_rng(last).uniform(0.5, 1, (*samples, last + 1)))
            for stage in (None, *range(last + 3)):
                if self.applies(stage, last):
                    applied, value = True, self.of(scores, stage, last, True)
                    known = known or bool(np.isfinite(value).all())
        if applied and not known:
            raise self._faulty("its formula gives no number, though every score is known (the last is scores[last])")

    def at(self, moments: Mapping[Any, float], higher_is_better: bool) -> float:
        """Return the number from the scores ``base``, ``learnt`` (just learnt) and ``final``; NaN if one is missing."""
        known = {row: moments[name] for row, name in enumerate(("base", "learnt", "final")) if name in moments}
        scores = Scores(tuple(known), np.array(list(known.values()), float))
        return float(self.of(scores, 1, 2, higher_is_better))


def _seen(j: int | None, last: int) -> bool:
    return j is not None and 1 <= j <= last


def _own(j: int | None, last: int) -> bool:
    return j is not None and 0 <= j <= last


def _earlier(j: int | None, last: int) -> bool:
    return j is not None and 1 <= j < last


def _coming(j: int | None, last: int) -> bool:
    return j is not None and 2 <= j <= last + 1


def _general(j: int | None, last: int) -> bool:
    return j is None and last > 0


def _forgotten(u: Scores, j: int, last: int) -> Floats:
    return u[j] - u[last]


def _forgotten_max(u: Scores, j: int, last: int) -> Floats:
    return np.asarray(np.max([u[row] for row in range(j, last + 1)], axis=0) - u[last])


def _share_forgotten(u: Scores, j: int, last: int) -> Floats:
    return np.asarray((u[j] - u[last]) / np.where(u[j] == 0, 1.0, np.abs(u[j])))


def _share_forgotten_clipped(u: Scores, j: int, last: int) -> Floats:
    learnt, left = np.clip(u[j], 0, 1), np.clip(u[last], 0, 1)
    return np.asarray(np.where(learnt == 0, 1.0, (learnt - left) / np.where(learnt == 0, 1.0, learnt)))


def _per_step(formula: Formula) -> Formula:
    return lambda u, j, last: formula(u, j, last) / (last - j)


def _shares_forgotten() -> list[Quantity]:
    """Return the shares forgotten in both conventions of the study: over all later steps, and per step."""
    quantities = []
    for key, formula in (("", _share_forgotten), ("_clipped", _share_forgotten_clipped)):
        title = "Share forgotten, clipped" if key else "Share forgotten"
        meaning = "The share of a task's standardised accuracy, right after its own stage, that is lost at the end"
        meaning += "; accuracies are clipped to 0 … 1, and a task that was never learnt counts as lost" if key else ""
        total = Quantity(
            f"share_forgotten{key}",
            title,
            False,
            "forgot a smaller share",
            "forgot a larger share",
            f"{meaning}. Less is better.",
            _earlier,
            formula,
            of_metric=STANDARDISED,
        )
        each = replace(
            total,
            key=f"{total.key}_per_step",
            title=f"{title}, per step",
            meaning=f"{meaning}; divided by the number of later stages. Less is better.",
            formula=_per_step(formula),
            columns=False,
        )
        quantities += [total, each]
    return quantities


QUANTITIES: Registry[Quantity] = Registry("quantities")
"""Every quantity that is derived from scores, by name."""


def register_quantity(quantity: Quantity) -> Quantity:
    """Register a quantity for results, tables and reports, if it can be computed.

    Raises:
        PluginError: it cannot, or its key is taken.
    """
    quantity.check()
    QUANTITIES.add(quantity.key, quantity)
    return quantity


for _each in (
    Quantity(
        "learnt",
        "Learnt",
        True,
        "learnt more",
        "learnt less",
        "How much better the model is at a domain right after its stage than the base model was. More is better.",
        _seen,
        lambda u, j, last: u[j] - u[0],
    ),
    Quantity(
        "forgotten",
        "Forgotten",
        False,
        "forgot less",
        "forgot more",
        "How much worse the model is at an earlier domain at the end of the stream than right after that domain's "
        "stage. Zero is no forgetting, below zero later domains helped. Less is better.",
        _earlier,
        _forgotten,
        gain="from later domains",
    ),
    Quantity(
        "gained",
        "Gain at the end",
        True,
        "ended better",
        "ended worse",
        "How much better the model is at the domains at the end of the stream than the base model was: what was "
        "learnt, less what was forgotten again. Below zero the stream has made it worse. More is better.",
        _own,
        lambda u, j, last: u[last] - u[0],
    ),
    Quantity(
        "forgotten_max",
        "Forgotten, max form",
        False,
        "forgot less (max form)",
        "forgot more (max form)",
        "Like *forgotten*, but counted from the best score that any stage had reached. Never below zero.",
        _earlier,
        _forgotten_max,
    ),
    Quantity(
        "general_drift",
        "General drift",
        False,
        "kept more general knowledge",
        "lost more general knowledge",
        "How much worse the model is at general text, which no stage trains on, at the end of the stream than the "
        "base model was. Less is better.",
        _general,
        lambda u, j, last: u[0] - u[last],
        averaged=False,
        gain="on general text",
    ),
    Quantity(
        "average",
        "Average at the end",
        None,
        "scores higher on end tasks",
        "scores lower on end tasks",
        "The mean score at the end of the stream.",
        _own,
        lambda r, j, last: r[last],
        columns=False,
    ),
    Quantity(
        "backward_transfer",
        "Backward transfer",
        True,
        "transferred more to earlier domains",
        "transferred less to earlier domains",
        "How much later stages changed earlier domains for the better. Negative is forgetting.",
        _earlier,
        lambda u, j, last: -_forgotten(u, j, last),
    ),
    Quantity(
        "forward_transfer",
        "Forward transfer",
        True,
        "transferred more to later domains",
        "transferred less to later domains",
        "How much better the model already was at a domain, just before the domain's own stage, than the base model.",
        _coming,
        lambda u, j, last: u[j - 1] - u[0],
    ),
    Quantity(
        "forgetting_rate",
        "Forgetting rate",
        False,
        "has the lower forgetting rate",
        "has the higher forgetting rate",
        "As the DAS paper defines it: the mean of what is forgotten over all domains but the last.",
        _earlier,
        _forgotten,
        columns=False,
    ),
    *_shares_forgotten(),
    Quantity(
        "just_learnt",
        "Just learnt",
        None,
        "scores higher just after learning",
        "scores lower just after learning",
        "The mean score of each domain right after its own stage.",
        _seen,
        lambda r, j, last: r[j],
        recorded=False,
    ),
    Quantity(
        "general_average",
        "General average at the end",
        None,
        "scores higher on general tasks",
        "scores lower on general tasks",
        "The mean score on general text and tasks without a domain at the end of the stream.",
        _general,
        lambda r, _, last: r[last],
        recorded=False,
    ),
):
    QUANTITIES.add(_each.key, _each)


@dataclass(frozen=True, eq=False)
class Column:
    """One task's scores under one metric, in the rows where it was measured.

    Attributes:
        name: name of the task.
        stage: the row in which its domain has just been learnt; None for a general column.
        rows: numbers of the rows.
        values: scores, [rows].
        samples: bootstrap samples, [resamples, rows]; rows are resampled together (paired), columns independently.
    """

    name: str
    stage: int | None
    rows: tuple[int, ...]
    values: Floats
    samples: Floats


class Derivation:
    """Derive the quantities of one metric from its columns, which are added one by one.

    Only sums over the bootstrap samples are kept, so memory does not grow with the number of columns.

    Args:
        last: T, the number of domains learnt in the last row.
        higher_is_better: whether higher scores of the metric are better.
        metric: name of the metric.
    """

    def __init__(self, last: int, higher_is_better: bool, metric: str = "") -> None:
        self.last, self.higher_is_better = last, higher_is_better
        self.quantities = {
            key: each for key, each in QUANTITIES.items() if each.recorded and each.of_metric in (None, metric)
        }
        self.estimates: dict[str, dict[str, Estimate]] = {key: {} for key in self.quantities}
        self.values: dict[str, list[Floats]] = {}
        self.sums: dict[str, Floats] = {}

    def add(self, column: Column) -> None:
        """Add one column."""
        with np.errstate(invalid="ignore"):  # their sums
            for key, quantity in self.quantities.items():
                if not quantity.applies(column.stage, self.last):
                    continue
                value, samples = (
                    quantity.of(Scores(column.rows, part), column.stage, self.last, self.higher_is_better)
                    for part in (column.values, column.samples)
                )
                if quantity.columns and (own := estimate(value, samples)).value is not None:
                    self.estimates[key][column.name] = own
                if quantity.averaged:
                    self.values.setdefault(key, []).append(value)
                    self.sums[key] = self.sums.get(key, np.zeros(1)) + samples

    def summary(self) -> dict[str, dict[str, Estimate]]:
        """Return estimates by quantity and column (and ``mean``); unknown values are absent."""
        with np.errstate(invalid="ignore"):
            for key, values in self.values.items():
                if (mean := estimate(float(np.mean(values)), self.sums[key] / len(values))).value is not None:
                    self.estimates[key][MEAN] = mean
        return self.estimates


def summarise(
    columns: Iterable[Column], last: int, higher_is_better: bool, metric: str = ""
) -> dict[str, dict[str, Estimate]]:
    """Return every quantity of one metric, each with its interval."""
    derivation = Derivation(last, higher_is_better, metric)
    for column in columns:
        derivation.add(column)
    return derivation.summary()


def estimate(value: Floats | float, samples: Floats) -> Estimate:
    """Return a number with its percentile interval; an empty estimate if it is not finite."""
    if not np.isfinite(value):
        return Estimate()
    low, high = (float(end) if np.isfinite(end) else None for end in percentiles(samples))
    return Estimate(float(value), low, high)
