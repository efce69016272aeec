"""One quantity's estimates for several runs, and which run is clearly better at it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from everlearn.evaluation.quantities import QUANTITIES, Quantity
from everlearn.evaluation.statistics import Floats, percentiles
from everlearn.report.formatting import decimals
from everlearn.report.runs import Estimate, number

KINDS: tuple[Quantity, ...] = tuple(QUANTITIES.values())
"""What is measured in a run, in the order of tables."""


@dataclass(frozen=True)
class Measure:
    """One measure of one metric: an estimate for each run, and for each column that all runs share."""

    kind: Quantity
    metric: str
    title: str
    unit: str
    higher_is_better: bool
    estimates: tuple[Estimate, ...]
    columns: dict[str, tuple[Estimate, ...]]
    samples: dict[str, Floats] = field(default_factory=dict)
    """Column → paired samples [resamples, runs], where the runs kept what they were scored on."""

    @property
    def signed(self) -> bool:
        """Whether this is a change, which is written with its sign, and not a score."""
        return self.kind.signed

    @property
    def places(self) -> int:
        """Decimals for every number of this measure."""
        return decimals(e.value for e in (*self.estimates, *(e for row in self.columns.values() for e in row)))

    @property
    def known(self) -> bool:
        """Whether any run has it, if only for some columns."""
        return bool(self.columns) or any(estimate.value is not None for estimate in self.estimates)

    @property
    def paired(self) -> bool:
        """Whether differences are resampled in pairs, on the same text for all runs."""
        return bool(self.columns) and all(column in self.samples for column in self.columns)

    def difference(self, run: int, reference: int = 0) -> Estimate:
        """This run minus the reference: a paired bootstrap, or from separate intervals (:meth:`Estimate.minus`)."""
        apart = self.estimates[run].minus(self.estimates[reference])
        if not self.paired or apart.value is None:
            return apart
        # The columns are resampled independently of each other, so the mean over them is the samples' mean.
        samples = np.mean([self.samples[column] for column in self.columns], axis=0)
        low, high = percentiles(samples[:, run] - samples[:, reference])
        return Estimate(apart.value, number(float(low)), number(float(high)))

    def column(self, name: str) -> Measure:
        """The same measure of one column alone."""
        estimates = self.columns[name]
        own = {name: self.samples[name]} if name in self.samples else {}
        return replace(self, estimates=estimates, columns={name: estimates}, samples=own)

    def judge(self, run: int, reference: int = 0) -> int | None:
        """+1 clearly better than the reference, -1 clearly worse, 0 not clear, None when that cannot be said."""
        sign = self.difference(run, reference).sign
        return None if sign is None else sign if self.higher_is_better else -sign

    def words(self, run: int, reference: int = 0) -> str:
        """What the run did against the reference: "forgot less"; for a judgement that is clear."""
        good = self.judge(run, reference) == 1
        pair = [self.estimates[position].value for position in (run, reference)]
        if self.kind.gain and all(value is not None and value < 0 for value in pair):
            return f"gained {'more' if good else 'less'} {self.kind.gain}"
        return self.kind.better if good else self.kind.worse

    @property
    def best(self) -> int | None:
        """The run that is clearly better than every other one, if there is such a run."""
        for run in range(len(self.estimates)):
            others = [other for other in range(len(self.estimates)) if other != run]
            if others and all(self.judge(run, other) == 1 for other in others):
                return run
        return None
