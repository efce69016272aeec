"""Compare several runs on the domains and metrics that all of them have.

Runs that differ only in their seed are averaged. Other differences between the runs are listed with the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from pathlib import Path

from everlearn.comparison.formatting import listing
from everlearn.comparison.measures import Measure
from everlearn.comparison.recipe_differences import Differences, Values, unlike
from everlearn.comparison.replicates import Pool, pooled, pools
from everlearn.comparison.runs import Run, read_run
from everlearn.comparison.shared_examples import paired_samples
from everlearn.config.reading import read_saved
from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate, mean, number
from everlearn.evaluation.quantities import MEAN, QUANTITIES, TOLERATED_DRIFT
from everlearn.evaluation.score_table import ScoreTable
from everlearn.wording import be, count

_YARDSTICKS = ("bits_per_byte", "loss", "perplexity")
"""Metrics of text, the preferred one first: only bits per byte does not depend on the tokenizer."""
HEADLINE = ("gained", "learnt", "forgotten", "general_drift")
"""Quantities of the main metric in the first table, in this order."""
METRIC, KEY = "bits_per_byte", "general_drift"
"""Metric and quantity that the tolerance bounds."""


@dataclass(frozen=True)
class Comparison:
    """Compare runs on what they share; runs that differ only in their seed form one pool and one line."""

    pools: tuple[Pool, ...]
    domains: tuple[str, ...]
    """Domains that all runs have, in the first run's order."""
    general: tuple[str, ...]
    metrics: tuple[str, ...]
    """Metrics that all runs have; the main one first."""
    measures: dict[str, tuple[Measure, ...]]
    """Metric → its measures."""
    headline: tuple[Measure, ...]
    """Measures of :data:`HEADLINE`, and the average end-task score. Empty if one of the runs is a set of existing
    models rather than a stream, since none of these is the base of the others."""
    unlike: Differences
    """How the pools differ besides their methods."""
    notes: tuple[str, ...]
    tolerance: float = TOLERATED_DRIFT
    """General drift, in bits per byte, up to which a run is recommended."""

    @property
    def differing(self) -> Values:
        """Return the differences that rule out a comparison as equals: in data and in compute."""
        return self.unlike.ground | self.unlike.spent

    @property
    def runs(self) -> tuple[Run, ...]:
        """Return all runs, pool by pool."""
        return tuple(run for pool in self.pools for run in pool.runs)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the label of each pool."""
        return tuple(pool.label for pool in self.pools)

    @property
    def leaked(self) -> dict[str, float]:
        """Return the share of each held-out set and end task that occurs in training text, the largest over runs."""
        shares: dict[str, float] = {}
        for run in self.runs:
            for name, share in run.leaked.items():
                shares[name] = max(share, shares.get(name, 0.0))
        return shares

    @property
    def same_stream(self) -> bool:
        """Return whether all runs learn the same domains in the same order."""
        return all(run.domains == self.runs[0].domains for run in self.runs)

    @property
    def streams(self) -> bool:
        """Return whether all are runs over a stream of domains, and not sets of existing models."""
        return all(run.domains for run in self.runs)

    @property
    def text_metric(self) -> str | None:
        """Return the main metric of text."""
        return next((metric for metric in self.metrics if not self.matrices(metric)[0].task_domains), None)

    @property
    def task_metrics(self) -> list[str]:
        """Return the metrics of end tasks."""
        return [metric for metric in self.metrics if self.matrices(metric)[0].task_domains]

    @property
    def lead(self) -> str | None:
        """Return the main metric of the report."""
        return self.text_metric or next(iter(self.task_metrics), None)

    def matrices(self, metric: str, pool: int | None = None) -> list[ScoreTable]:
        """Return the scores of a pool's runs, or of all runs."""
        runs = self.runs if pool is None else self.pools[pool].runs
        return [run.matrices[metric] for run in runs]

    def over_seeds(self, metric: str, pool: int, score: Callable[[ScoreTable], float | None]) -> float | None:
        """Return the mean of `score` over a pool's runs (its seeds); None if one of them lacks it."""
        values = [score(matrix) for matrix in self.matrices(metric, pool)]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if values and len(known) == len(values) else None

    def score(self, metric: str, pool: int, row: int, column: str) -> float | None:
        """Return the mean score of a pool's runs; None if one of them was not measured."""
        return self.over_seeds(metric, pool, lambda matrix: matrix.cell(row, column).value)

    def measure(self, metric: str | None, key: str) -> Measure | None:
        """Return a measure by the key of its quantity, or None if no run has it."""
        return next((m for m in self.measures.get(metric or "", ()) if m.quantity.key == key), None)

    def drifts(self, pool: int) -> dict[str, Estimate]:
        """Return a pool's general drift in bits per byte, on each general set of its own runs."""
        each = [run.summary(METRIC, KEY) for run in self.pools[pool].runs]
        estimates = {
            name: pooled([own.get(name, Estimate()) for own in each]) for name in self.pools[pool].runs[0].general
        }
        return {name: estimate for name, estimate in estimates.items() if estimate.value is not None}

    def side(self, pool: int) -> Side:
        """Return whether a pool's general drift is within the tolerance."""
        return side(self.drifts(pool).values(), self.tolerance)

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Return the pools, the best at the end of the stream first, and those without a number last."""
        lead = self.measure(self.lead, "gained") or next(iter(self.headline), None)
        ranked = list(lead.ranking) if lead else []
        return (*ranked, *(position for position in range(len(self.pools)) if position not in ranked))

    @property
    def ranks(self) -> dict[int, int]:
        """Return each pool's place in the ranking, from 0, which sets its colour and marker in every figure."""
        return {pool: rank for rank, pool in enumerate(self.ranking)}


def compare(runs: Sequence[Path], tolerate: float | None = None) -> Comparison:
    """Read run folders and compare them on the domains and metrics that they share.

    Args:
        runs: Run folders. The first is the reference with which the others are compared.
        tolerate: General drift, in bits per byte, up to which a run is recommended. Default: the value of the recipes
            (``report.tolerate``).

    Raises:
        RunError: no folder was given, or one has no readable results.json.
    """
    return compare_runs([read_run(Path(folder)) for folder in runs], tolerate)


def compare_runs(runs: Sequence[Run], tolerate: float | None = None) -> Comparison:
    """Compare runs that are already read; arguments as of :func:`compare`.

    Raises:
        RunError: there is no run.
    """
    if not runs:
        raise RunError("A report needs at least one run folder, for example runs/<name>.")
    grouped = pools(runs)
    return compare_pools(grouped, unlike([pool.runs[0] for pool in grouped]), tolerate)


def compare_pools(grouped: Sequence[Pool], apart: Differences, tolerate: float | None = None) -> Comparison:
    """Compare runs that are already pooled.

    Args:
        grouped: the pools, one or more. The first is the reference with which the others are compared.
        apart: how the pools differ besides their methods.
        tolerate: as of :func:`compare`.
    """
    ordered = [run for pool in grouped for run in pool.runs]
    first = ordered[0]
    domains = tuple(d for d in first.domains if all(d in run.domains for run in ordered))
    general = tuple(g for g in first.general if all(g in run.general for run in ordered))
    shared = [m for m in first.matrices if all(m in run.matrices for run in ordered)]
    metrics = tuple(sorted(shared, key=lambda m: _YARDSTICKS.index(m) if m in _YARDSTICKS else len(_YARDSTICKS)))
    if len(grouped) > 1 and any(run.unfinished for run in ordered):
        # An unfinished run may still forget more.
        apart.spent["domains learnt"] = tuple(_progress(pool) for pool in grouped)
    must_be_equal = [*apart.ground.values(), *apart.spent.values()]
    unequal = frozenset(
        (a, b) for a, b in combinations(range(len(grouped)), 2) if any(v[a] != v[b] for v in must_be_equal)
    )
    measures = {metric: tuple(_measures(grouped, metric, unequal)) for metric in metrics}
    return Comparison(
        tuple(grouped),
        domains,
        general,
        metrics,
        measures,
        tuple(_headline(first, metrics, measures)) if all(run.domains for run in ordered) else (),
        apart,
        tuple(_notes(grouped, domains, metrics)),
        tolerance_of(ordered) if tolerate is None else tolerate,
    )


def _progress(pool: Pool) -> str:
    """Return how many domains a pool's runs have learnt; the fewest if its seeds differ."""
    run = min(pool.runs, key=lambda run: run.stages_done)
    return f"{run.stages_done} of {len(run.domains)}"


def _measures(pools: Sequence[Pool], metric: str, unequal: frozenset[tuple[int, int]]) -> list[Measure]:
    runs = [run for pool in pools for run in pool.runs]
    matrix = runs[0].matrices[metric]
    samples = paired_samples(runs, metric) if len(runs) == len(pools) else {}
    measures: list[Measure] = []
    for key, quantity in QUANTITIES.items():
        if not quantity.recorded:
            continue
        each = [[_with_columns(run, metric, key) for run in pool.runs] for pool in pools]
        alike = len({frozenset(map(_measured, own)) for own in each}) == 1
        all_summaries = [summary for own in each for summary in own]
        shared = [
            column
            for column in all_summaries[0]
            if column != MEAN and all(one.get(column, Estimate()).value is not None for one in all_summaries)
        ]
        columns = {column: tuple(pooled([one[column] for one in own]) for own in each) for column in shared}
        better = matrix.higher_is_better if quantity.higher_is_better is None else quantity.higher_is_better
        title = quantity.title
        if matrix.task_domains:
            title = f"End-task {matrix.title[:1].lower()}{matrix.title[1:]}"
            title += f": {quantity.title.lower()}" if quantity.signed else ""
        means = [[_shared_mean(summary, _measured(summary) if alike else shared) for summary in own] for own in each]
        measure = Measure(
            quantity,
            metric,
            title,
            matrix.printed_unit,
            better,
            tuple(map(pooled, means)),
            columns,
            _by_seed(pools, means),
            {column: _by_seed(pools, [[one[column] for one in own] for own in each]) for column in columns},
            samples.get(key, {}),
            unequal,
        )
        if quantity.averaged:
            measures.append(measure)
        elif len(columns) == 1:
            measures.append(measure.column(shared[0]))
        else:
            measures += [replace(measure.column(name), title=f"{title}, {name}") for name in columns]
    return [measure for measure in measures if measure.known]


def _by_seed(run_pools: Sequence[Pool], each: Sequence[Sequence[Estimate]]) -> tuple[dict[str, float], ...]:
    """Return each pool's numbers by seed."""
    return tuple(
        {seed: e.value for seed, e in zip(pool.seeds, own, strict=True) if e.value is not None}
        for pool, own in zip(run_pools, each, strict=True)
    )


def _with_columns(run: Run, metric: str, key: str) -> dict[str, Estimate]:
    # Two quantities are written as a mean only. Their columns are needed if the runs have different domains, and are
    # found elsewhere in the file.
    summary = run.summary(metric, key)
    if key == "forgetting_rate":
        return {**run.summary(metric, "forgotten"), **summary} if summary else {}
    if key == "average":
        matrix = run.matrices[metric]
        return {c: matrix.cell(-1, c) for c in matrix.columns if matrix.own_stage(c) is not None} | summary
    return summary


def _measured(summary: dict[str, Estimate]) -> frozenset[str]:
    """Return the columns that have a value. Pools of the same orders have the same ones, order by order."""
    return frozenset(column for column, estimate in summary.items() if column != MEAN and estimate.value is not None)


def _shared_mean(summary: dict[str, Estimate], shared: Collection[str]) -> Estimate:
    if _measured(summary) == set(shared):
        return summary.get(MEAN, Estimate())
    # The run has columns that another one lacks, so its own mean cannot be compared.
    return mean(summary[column] for column in shared)


def _headline(first: Run, metrics: Sequence[str], measures: dict[str, tuple[Measure, ...]]) -> list[Measure]:
    texts = [metric for metric in metrics if not first.matrices[metric].task_domains]
    tasks = [metric for metric in metrics if first.matrices[metric].task_domains]
    keys = [(metric, key) for metric in (texts or tasks)[:1] for key in HEADLINE]
    keys += [(metric, "average") for metric in tasks[:1]]
    return [m for metric, key in keys for m in measures[metric] if m.quantity.key == key]


def _notes(run_pools: Sequence[Pool], domains: Sequence[str], metrics: Sequence[str]) -> list[str]:
    notes = []
    runs = [run for pool in run_pools for run in pool.runs]
    shared_tasks = set.intersection(*(set(_tasks(run, metrics)) for run in runs))
    for pool in run_pools:
        for run in pool.runs:
            label = pool.label if len(pool.runs) == 1 else f"{pool.label}, seed {run.results.get('seed')}"
            notes += _own_notes(label, run, domains, metrics, shared_tasks)
    if len({tuple(d for d in run.domains if d in domains) for run in runs}) > 1:
        notes.append(
            "The runs learn the shared domains in different orders: only domains that are early in all of them enter "
            "the mean of what was forgotten."
        )
    pools_of_note: dict[str, list[str]] = {}
    for pool in run_pools:
        for note in dict.fromkeys(str(note) for run in pool.runs for note in run.results.get("notes") or []):
            pools_of_note.setdefault(note, []).append(pool.label)
    return notes + [
        note if len(by) == len(run_pools) else f"{listing(by)}: {note}" for note, by in pools_of_note.items()
    ]


def _tasks(run: Run, metrics: Sequence[str]) -> list[str]:
    """Return the end tasks of a run under these metrics."""
    return list(dict.fromkeys(task for metric in metrics for task in run.matrices[metric].task_domains or ()))


def _own_notes(
    label: str, run: Run, domains: Sequence[str], metrics: Sequence[str], shared_tasks: set[str]
) -> list[str]:
    notes = []
    status, done, total = run.results.get("status"), run.stages_done, len(run.domains)
    if run.unfinished:
        how = "" if status == "running" else f" ({status or 'status unknown'})"  # it may have been stopped since
        notes.append(
            f"{label} is not finished{how}: {done} of {count(total, 'stage')} "
            f"{be(total)} measured, so its forgetting is counted from there and not from the end of the stream."
        )
    if run.broken_lines:
        notes.append(f"{count(run.broken_lines, 'line')} of {label}'s metrics.jsonl could not be read: left out.")
    extra = [domain for domain in run.domains if domain not in domains]
    if extra:
        notes.append(f"Left out of the comparison, because not every run has them: {listing(extra)} ({label}).")
    if tasks := [task for task in _tasks(run, metrics) if task not in shared_tasks]:
        notes.append(f"End tasks that not every run has are not compared: {listing(tasks)} ({label}).")
    only = [metric for metric in run.matrices if metric not in metrics]
    if only:
        notes.append(f"Metrics that not every run has, shown for {label} alone: {listing(only)}.")
    return notes


class Side(StrEnum):
    """Position of a run's general drift relative to the bound."""

    WITHIN = "within"
    BEYOND = "beyond"
    UNDECIDED = "undecided"
    """The interval contains the bound, or there is no interval."""
    NOT_MEASURED = "not measured"


def tolerance_of(runs: Iterable[Run]) -> float:
    """Return the bound that the runs' recipes set (``report.tolerate``), the lowest if they differ."""
    return min(_own(run) for run in runs)


def _own(run: Run) -> float:
    raw = read_saved(run.recipe or "")
    group = raw.get("report") if isinstance(raw, dict) else None
    value = number(group.get("tolerate")) if isinstance(group, dict) else None
    return TOLERATED_DRIFT if value is None else value


def side(drifts: Iterable[Estimate], bound: float) -> Side:
    """Return the position of general drift relative to the bound; with several general sets the worst one decides.

    Args:
        drifts: general drift on each measured general set, in bits per byte.
        bound: the bound, in bits per byte.
    """
    above = [estimate.above(bound) for estimate in drifts]
    if not above:
        return Side.NOT_MEASURED
    if True in above:
        return Side.BEYOND
    return Side.UNDECIDED if None in above else Side.WITHIN


def worth_taking(gained: Estimate, where: Side) -> bool | None:
    """Return whether a run is worth taking (docs/evaluation.md); None if its intervals leave that undecided.

    Args:
        gained: how much better it is at its domains at the end of the stream than the base model.
        where: position of its general drift; unmeasured drift does not count against it.
    """
    if gained.sign is None:
        return None
    if gained.sign != 1 or where is Side.BEYOND:
        return False
    return None if where is Side.UNDECIDED else True
