"""What is measured in a run: the kinds of measures, and one measure's estimates for several runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from everlearn.evaluation.statistics import Floats, percentiles
from everlearn.report.formatting import decimals
from everlearn.report.runs import Estimate, number


@dataclass(frozen=True)
class Kind:
    """A measure of the summary: what it is called and which direction is good."""

    key: str
    title: str
    higher_is_better: bool | None
    """None: as the metric itself, for measures that are scores rather than changes."""
    better: str
    """What a run did that is clearly better at it: "forgot less"."""
    worse: str
    meaning: str
    averaged: bool = True
    """Whether its mean over columns means something; if not, each column is a measure of its own."""
    gain: str = ""
    """What a negative loss is called: where two runs both gained, neither "forgot more"."""


KINDS = (
    Kind(
        "learnt",
        "Learnt",
        True,
        "learnt more",
        "learnt less",
        "How much better the model is at a domain right after its stage than the base model was. More is better.",
    ),
    Kind(
        "forgotten",
        "Forgotten",
        False,
        "forgot less",
        "forgot more",
        "How much worse the model is at an earlier domain at the end of the stream than right after that domain's "
        "stage. Zero is no forgetting, below zero later domains helped. Less is better.",
        gain="from later domains",
    ),
    Kind(
        "forgotten_max",
        "Forgotten, max form",
        False,
        "forgot less (max form)",
        "forgot more (max form)",
        "The same, counted from the best score that any stage had reached. Never below zero.",
    ),
    Kind(
        "general_drift",
        "General drift",
        False,
        "kept more general knowledge",
        "lost more general knowledge",
        "How much worse the model is at general text, which no stage trains on, at the end of the stream than the "
        "base model was. Less is better.",
        averaged=False,
        gain="on general text",
    ),
    Kind(
        "average",
        "Average at the end",
        None,
        "scores higher on end tasks",
        "scores lower on end tasks",
        "The mean score at the end of the stream.",
    ),
    Kind(
        "backward_transfer",
        "Backward transfer",
        True,
        "transferred more to earlier domains",
        "transferred less to earlier domains",
        "How much later stages changed earlier domains for the better. Negative is forgetting.",
    ),
    Kind(
        "forward_transfer",
        "Forward transfer",
        True,
        "transferred more to later domains",
        "transferred less to later domains",
        "How much better a domain already was, just before its own stage, than in the base model.",
    ),
    Kind(
        "forgetting_rate",
        "Forgetting rate",
        False,
        "has the lower forgetting rate",
        "has the higher forgetting rate",
        "As the DAS paper defines it: the mean of what is forgotten over all domains but the last.",
    ),
)


@dataclass(frozen=True)
class Measure:
    """One measure of one metric: an estimate for each run, and for each column that all runs share."""

    kind: Kind
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
        return self.kind.higher_is_better is not None

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
