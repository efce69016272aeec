"""What several runs have in common, side by side: pure data, from which every table, figure and sentence is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everlearn.errors import RunError
from everlearn.report.formatting import decimals, listing, shorten
from everlearn.report.runs import Estimate, Matrix, Run, mean, read_run


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
        "The published benchmarks' rate: the sum of what the earlier domains lost, divided by their number "
        "(all domains but the last).",
    ),
)
_YARDSTICKS = ("bits_per_byte", "loss", "perplexity")
"""Which metric of text the page leads with: bits per byte is the only one that no tokenizer can change."""


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
        """Whether any run has it."""
        return any(estimate.value is not None for estimate in self.estimates)

    def difference(self, run: int, reference: int = 0) -> Estimate:
        """This run minus the reference, both from independent intervals (see :meth:`Estimate.minus`)."""
        return self.estimates[run].minus(self.estimates[reference])

    def judge(self, run: int, reference: int = 0) -> int | None:
        """+1 clearly better than the reference, -1 clearly worse, 0 not clear, None when that cannot be said."""
        sign = self.difference(run, reference).sign
        return None if sign is None else sign if self.higher_is_better else -sign

    @property
    def best(self) -> int | None:
        """The run that is clearly better than every other one, if there is such a run."""
        for run in range(len(self.estimates)):
            others = [other for other in range(len(self.estimates)) if other != run]
            if others and all(self.judge(run, other) == 1 for other in others):
                return run
        return None


@dataclass(frozen=True)
class Comparison:
    """Runs side by side on what they share."""

    runs: tuple[Run, ...]
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    """Domains that all runs have, in the first run's order."""
    general: tuple[str, ...]
    metrics: tuple[str, ...]
    """Metrics that all runs have; the leading one first."""
    measures: dict[str, tuple[Measure, ...]]
    """Metric → its measures."""
    headline: tuple[Measure, ...]
    """Learnt, forgotten, general drift and the average end-task score."""
    notes: tuple[str, ...]

    @property
    def same_stream(self) -> bool:
        """Whether all runs learn the same domains in the same order."""
        return all(run.domains == self.runs[0].domains for run in self.runs)

    @property
    def text_metric(self) -> str | None:
        """The metric of text that leads the page."""
        return next((metric for metric in self.metrics if not self.matrix(0, metric).task_domains), None)

    @property
    def task_metrics(self) -> list[str]:
        """Metrics of end tasks."""
        return [metric for metric in self.metrics if self.matrix(0, metric).task_domains]

    def matrix(self, run: int, metric: str) -> Matrix:
        """A run's score matrix."""
        return self.runs[run].matrices[metric]

    def measure(self, metric: str | None, key: str) -> Measure | None:
        """A measure by its key, or None when no run has it."""
        return next((m for m in self.measures.get(metric or "", ()) if m.kind.key == key), None)


def compare(runs: Sequence[Path]) -> Comparison:
    """Read run folders and put them side by side on the domains and metrics that they share.

    Args:
        runs: Run folders. The first is the reference that the others are compared with.

    Raises:
        RunError: no folder was given, or one has no readable results.json.
    """
    return compare_runs([read_run(Path(folder)) for folder in runs])


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """The same for runs that are already read.

    Raises:
        RunError: there is no run.
    """
    if not runs:
        raise RunError("A report needs at least one run folder, for example runs/<name>.")
    first = runs[0]
    domains = tuple(d for d in first.domains if all(d in run.domains for run in runs))
    general = tuple(g for g in first.general if all(g in run.general for run in runs))
    shared = [m for m in first.matrices if all(m in run.matrices for run in runs)]
    metrics = tuple(sorted(shared, key=lambda m: _YARDSTICKS.index(m) if m in _YARDSTICKS else len(_YARDSTICKS)))
    measures = {metric: tuple(_measures(runs, metric)) for metric in metrics}
    return Comparison(
        tuple(runs),
        _labels(runs),
        domains,
        general,
        metrics,
        measures,
        tuple(_headline(runs, metrics, measures)),
        tuple(_notes(runs, domains, metrics)),
    )


def _labels(runs: Sequence[Run]) -> tuple[str, ...]:
    # A method's title says most; runs of the same methods add their name, and a number where that is the same too.
    titles = [run.title for run in runs]
    names = [t if titles.count(t) == 1 else f"{t} · {run.name}" for t, run in zip(titles, runs, strict=True)]
    labels = []
    for position, name in enumerate(names):
        unique = name if names.count(name) == 1 else f"{name} ({names[: position + 1].count(name)})"
        labels.append(shorten(unique, 60) or f"run {position + 1}")
    return tuple(labels)


def _measures(runs: Sequence[Run], metric: str) -> list[Measure]:
    matrix = runs[0].matrices[metric]
    found = []
    for kind in KINDS:
        summaries = [run.summary(metric, kind.key) for run in runs]
        columns = {
            column: tuple(summary[column] for summary in summaries)
            for column in summaries[0]
            if column != "mean" and all(c.get(column, Estimate()).value is not None for c in summaries)
        }
        better = matrix.higher_is_better if kind.higher_is_better is None else kind.higher_is_better
        if any("mean" in summary for summary in summaries):
            estimates = tuple(_shared_mean(summary, columns) for summary in summaries)
            found.append(Measure(kind, metric, kind.title, matrix.unit, better, estimates, columns))
        else:
            # General sets are not averaged: each is its own measure.
            for column, values in columns.items():
                title = kind.title if len(columns) == 1 else f"{kind.title}, {column}"
                found.append(Measure(kind, metric, title, matrix.unit, better, values, {column: values}))
    return [measure for measure in found if measure.known]


def _shared_mean(summary: dict[str, Estimate], shared: dict[str, tuple[Estimate, ...]]) -> Estimate:
    own = {column for column, estimate in summary.items() if column != "mean" and estimate.value is not None}
    if own == set(shared):
        return summary.get("mean", Estimate())
    # The run has columns that another one lacks: its own mean would compare different things.
    return mean(summary[column] for column in shared)


def _headline(runs: Sequence[Run], metrics: Sequence[str], measures: dict[str, tuple[Measure, ...]]) -> list[Measure]:
    texts = [metric for metric in metrics if not runs[0].matrices[metric].task_domains]
    tasks = [metric for metric in metrics if runs[0].matrices[metric].task_domains]
    wanted = [(metric, key) for metric in (texts or tasks)[:1] for key in ("learnt", "forgotten", "general_drift")]
    wanted += [(metric, "average") for metric in tasks[:1]]
    return [m for metric, key in wanted for m in measures[metric] if m.kind.key == key]


def _notes(runs: Sequence[Run], domains: Sequence[str], metrics: Sequence[str]) -> list[str]:
    labels, notes = _labels(runs), []
    for label, run in zip(labels, runs, strict=True):
        status, done, total = run.results.get("status"), run.stages_done, len(run.domains)
        if status != "finished" or done < total:
            notes.append(
                f"{label} is not finished ({status or 'status unknown'}): {done} of {total} stages are measured, so its "
                "forgetting is counted from there and not from the end of the stream."
            )
        if run.broken_lines:
            notes.append(f"{run.broken_lines} line(s) of {label}'s metrics.jsonl could not be read and are left out.")
        extra = [domain for domain in run.domains if domain not in domains]
        if extra:
            notes.append(f"Left out of the comparison, because not every run has them: {listing(extra)} ({label}).")
        only = [metric for metric in run.matrices if metric not in metrics]
        if only:
            notes.append(f"Metrics that not every run has, shown for {label} alone: {listing(only)}.")
    if len({tuple(d for d in run.domains if d in domains) for run in runs}) > 1:
        notes.append("The runs learn the shared domains in different orders: only domains that are early in all of")
        notes[-1] += " them enter the mean of what was forgotten."
    for key, what in (("model", "base models"), ("objective", "objectives")):
        values = [str(run.results.get(key)) for run in runs]
        if len(set(values)) > 1:
            pairs = listing([f"{label}: {value}" for label, value in zip(labels, values, strict=True)])
            notes.append(f"The runs have different {what} ({pairs}); compare changes, and bits per byte, with care.")
    several = len(runs) > 1
    for label, run in zip(labels, runs, strict=True):
        notes += [f"{label}: {note}" if several else str(note) for note in run.results.get("notes") or []]
    return notes
