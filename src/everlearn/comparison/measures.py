"""Compare one quantity of one metric over several runs: estimates, differences, and which of them are clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from everlearn.comparison.formatting import decimals
from everlearn.comparison.intervals import difference
from everlearn.evaluation.estimate import Estimate, number
from everlearn.evaluation.quantities import Quantity
from everlearn.evaluation.statistics import Floats, percentiles


@dataclass(frozen=True)
class Measure:
    """One quantity of one metric, with an estimate for each pool of runs and for each shared column.

    Attributes:
        quantity: the quantity.
        metric: name of the metric.
        title: name in tables.
        unit: unit of the numbers.
        higher_is_better: whether higher numbers are better.
        estimates: an estimate for each pool.
        columns: column → an estimate for each pool.
        seeds: for each pool, seed → the number of that run.
        column_seeds: column → the same for that column.
        samples: column → paired samples [resamples, pools], if the runs kept their cells.
        unequal: pairs of pools that differ in data, steps or tokens, between which no difference is called clear.
    """

    quantity: Quantity
    metric: str
    title: str
    unit: str
    higher_is_better: bool
    estimates: tuple[Estimate, ...]
    columns: Mapping[str, tuple[Estimate, ...]]
    seeds: tuple[Mapping[str, float], ...] = ()
    column_seeds: Mapping[str, tuple[Mapping[str, float], ...]] = field(default_factory=dict)
    samples: Mapping[str, Floats] = field(default_factory=dict)
    unequal: frozenset[tuple[int, int]] = frozenset()

    @property
    def places(self) -> int:
        """Return the number of decimals of all numbers of this measure."""
        return decimals(e.value for e in (*self.estimates, *(e for row in self.columns.values() for e in row)))

    @property
    def known(self) -> bool:
        """Return whether any run has it, at least for some columns."""
        return bool(self.columns) or any(estimate.value is not None for estimate in self.estimates)

    @property
    def paired(self) -> bool:
        """Return whether differences are resampled in pairs, on the same text for all runs."""
        return bool(self.columns) and all(column in self.samples for column in self.columns)

    def difference(self, run: int, reference: int = 0) -> Estimate:
        """Return this pool minus the reference.

        If one of them has several runs: Student's t over runs, in pairs of the same seed
        (:func:`everlearn.comparison.intervals.difference`). With one run each, the text is the sample: a paired
        bootstrap over it, or the separate intervals if pairing is impossible (:meth:`Estimate.minus`).
        """
        apart = self.estimates[run].minus(self.estimates[reference])
        if apart.value is None:
            return apart
        if self.seeds and max(len(self.seeds[run]), len(self.seeds[reference])) > 1:
            return difference(self.seeds[run], self.seeds[reference]).estimate
        if not self.paired:
            return apart
        # Columns are resampled independently, so the samples of their mean are the means of their samples.
        samples = np.mean([self.samples[column] for column in self.columns], axis=0)
        low, high = percentiles(samples[:, run] - samples[:, reference])
        return Estimate(apart.value, number(float(low)), number(float(high)))

    def column(self, name: str) -> Measure:
        """Return the same measure for one column."""
        estimates = self.columns[name]
        own = {name: self.samples[name]} if name in self.samples else {}
        return replace(
            self, estimates=estimates, columns={name: estimates}, samples=own, seeds=self.column_seeds.get(name, ())
        )

    def judge(self, run: int, reference: int = 0) -> int | None:
        """Return +1 if clearly better than the reference, -1 if clearly worse, 0 if neither, None if unknown.

        A difference that is 0 in the printed decimals is not clear, even if it is significant: two ways of computing
        the same thing differ by rounding.
        """
        if (run, reference) in self.unequal or (reference, run) in self.unequal:
            return None
        apart = self.difference(run, reference)
        sign = apart.sign if round(apart.value or 0.0, self.places) or apart.sign is None else 0
        return None if sign is None else sign if self.higher_is_better else -sign

    def words(self, run: int, reference: int = 0) -> str:
        """Return the words for a clear judgement against the reference, such as "forgot less"."""
        good = self.judge(run, reference) == 1
        pair = [self.estimates[position].value for position in (run, reference)]
        if self.quantity.gain and all(value is not None and value < 0 for value in pair):
            return f"gained {'more' if good else 'less'} {self.quantity.gain}"
        return self.quantity.better if good else self.quantity.worse

    @property
    def best(self) -> int | None:
        """Return the pool that is clearly better than every other one, if there is one."""
        ranked = self.ranking
        if len(ranked) < 2 or len(ranked) < len(self.estimates):
            return None
        first = ranked[0]
        return first if all(self.judge(first, other) == 1 for other in ranked[1:]) else None

    @property
    def ranking(self) -> Sequence[int]:
        """Return the pools that have a number, the best one first; ties keep their order."""
        sign = -1.0 if self.higher_is_better else 1.0
        values = {position: sign * e.value for position, e in enumerate(self.estimates) if e.value is not None}
        return sorted(values, key=lambda position: values[position])
