"""What several runs have in common, side by side: pure data, from which every table, figure and sentence is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from everlearn.errors import RunError
from everlearn.report.formatting import listing, shorten
from everlearn.report.measures import KINDS, Measure
from everlearn.report.paired import paired_samples
from everlearn.report.runs import Estimate, Matrix, Run, mean, read_run

_YARDSTICKS = ("bits_per_byte", "loss", "perplexity")
"""Which metric of text the page leads with: bits per byte is the only one that no tokenizer can change."""


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
    samples = paired_samples(runs, metric)
    found = []
    for kind in KINDS:
        summaries = [_with_columns(run, metric, kind.key) for run in runs]
        columns = {
            column: tuple(summary[column] for summary in summaries)
            for column in summaries[0]
            if column != "mean" and all(c.get(column, Estimate()).value is not None for c in summaries)
        }
        better = matrix.higher_is_better if kind.higher_is_better is None else kind.higher_is_better
        title, drawn = kind.title, samples.get(kind.key, {})
        if matrix.task_domains:
            score = kind.higher_is_better is None
            title = f"End-task {metric.replace('_', ' ')}" + ("" if score else f": {kind.title.lower()}")
        if kind.averaged:
            estimates = tuple(_shared_mean(summary, columns) for summary in summaries)
            found.append(Measure(kind, metric, title, matrix.unit, better, estimates, columns, drawn))
            continue
        for column, values in columns.items():
            name = title if len(columns) == 1 else f"{title}, {column}"
            whole = Measure(kind, metric, name, matrix.unit, better, values, {column: values}, drawn)
            found.append(whole.column(column))
    return [measure for measure in found if measure.known]


def _with_columns(run: Run, metric: str, key: str) -> dict[str, Estimate]:
    # Two measures are written as a mean only; their columns are elsewhere in the file, and are needed where the runs
    # do not have the same domains.
    summary = run.summary(metric, key)
    if key == "forgetting_rate":
        return {**run.summary(metric, "forgotten"), **summary} if summary else {}
    if key == "average":
        matrix = run.matrices[metric]
        return {c: matrix.cell(-1, c) for c in matrix.columns if matrix.own_stage(c) is not None} | summary
    return summary


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
                f"{label} is not finished ({status or 'status unknown'}): {done} of {total} stages are measured, so "
                "its forgetting is counted from there and not from the end of the stream."
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
    said: dict[str, list[str]] = {}
    for label, run in zip(labels, runs, strict=True):
        for note in dict.fromkeys(map(str, run.results.get("notes") or [])):
            said.setdefault(note, []).append(label)
    return notes + [note if len(by) == len(runs) else f"{listing(by)}: {note}" for note, by in said.items()]
