"""Follow learning and forgetting while a run trains: points from the base model to the end of the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from everlearn.comparison.runs import Run
from everlearn.comparison.training_log import INSIDE, looks
from everlearn.evaluation.metrics import METRICS
from everlearn.evaluation.quantities import QUANTITIES
from everlearn.evaluation.results import Waypoint
from everlearn.evaluation.score_table import ScoreTable

Scores = Mapping[str, Mapping[str, float]]
"""Metric → held-out set or end task → score."""
YARDSTICKS = ("choice_accuracy_per_byte",)
"""Preferred metrics of general knowledge: multiple choice normalised by the length of an option."""


@dataclass(frozen=True)
class Axes:
    """The two axes of a figure.

    Attributes:
        learnt: metric and columns of what is learnt.
        kept: metric and columns of what should be kept.
    """

    learnt: tuple[str, tuple[str, ...]]
    kept: tuple[str, tuple[str, ...]]

    @property
    def labels(self) -> tuple[str, str]:
        """Return the labels of the vertical and of the horizontal axis."""
        (learnt, of), (kept, others) = self.learnt, self.kept
        return f"{_title(learnt)} learnt ({', '.join(of)})", f"{_title(kept)} forgotten ({', '.join(others)})"

    def points(self, waypoints: Sequence[Waypoint]) -> list[tuple[float, float]]:
        """Return (forgotten, learnt) at each waypoint, against the first; waypoints without a score are left out."""
        pairs = []
        for at in waypoints:
            learnt = change("learnt", self.learnt, waypoints[0].learnt, at.learnt)
            forgotten = change("general_drift", self.kept, waypoints[0].kept, at.kept)
            if learnt and forgotten:
                pairs.append(tuple(sum(each.values()) / len(each) for each in (forgotten, learnt)))
        return pairs  # type: ignore[return-value]


def _title(metric: str) -> str:
    known = METRICS[metric]
    return known.title if known.unit == "fraction" else known.unit


def change(quantity: str, of: tuple[str, Iterable[str]], base: Scores, now: Scores) -> dict[str, float]:
    """Return a quantity of each column of a metric between two points in time; empty if a score is missing."""
    metric, columns = of
    at = "learnt" if quantity == "learnt" else "final"
    values = {}
    for column in columns:
        both = {"base": base.get(metric, {}).get(column), at: now.get(metric, {}).get(column)}
        known = {moment: value for moment, value in both.items() if value is not None}
        if len(known) < len(both):
            return {}
        values[column] = QUANTITIES[quantity].at(known, METRICS[metric].higher_is_better)
    return values


def axes(waypoint: Waypoint) -> list[Axes]:
    """Return the axes of the figures; empty if no task is without a domain.

    There is a figure for each metric of the domains, against the tasks that belong to no domain. The last figure
    compares text with text, since a small model's answers are near chance throughout.
    """
    kept = {
        metric: tuple(pairs) for metric, pairs in waypoint.kept.items() if METRICS[metric].unit == "fraction" and pairs
    }
    if not kept:
        return []
    metric = next((name for name in YARDSTICKS if name in kept), next(iter(kept)))
    pairs = [Axes((name, tuple(of)), (metric, kept[metric])) for name, of in waypoint.learnt.items() if of]
    own, others = (tuple(scores.get(INSIDE, {})) for scores in (waypoint.learnt, waypoint.kept))
    return [*pairs, *([Axes((INSIDE, own), (INSIDE, others))] if own and others else [])]


def kept_metric(run: Run) -> str | None:
    """Return the metric under which a run's tasks without a domain are compared; None if it has no such tasks."""
    shares = {
        name: None
        for name, table in run.matrices.items()
        if table.unit == "fraction" and None in (table.task_domains or {}).values()
    }
    return next((name for name in (*YARDSTICKS, *shares) if name in shares), None)


def moments(run: Run) -> list[Waypoint]:
    """Return the waypoints of a run: base model, scores inside the stages (`evaluation.tasks_every`), end.

    Each waypoint includes the scores of held-out text at the same step. The list is empty if no end task was scored
    inside a stage.
    """
    inside = inside_stages(run)
    if not inside:
        return []
    matrices = {name: matrix for name, matrix in run.matrices.items() if name in METRICS and name not in _REPEATED}
    total = sum(float(stage.get("tokens") or 0) for stage in run.cost.get("stages") or []) or float(run.tokens)
    points = [_waypoint(run, 0.0, _row(matrices, 0)), *inside]
    return points if run.unfinished else [*points, _waypoint(run, total, _row(matrices, -1))]


def inside_stages(run: Run) -> list[Waypoint]:
    """Return the waypoints inside a run's stages: from its log or, of a grid's cell, from its results."""
    if run.results.get("grid") is not None:
        return run.grid.points
    return [
        _waypoint(run, look.tokens, {**({INSIDE: look.scores} if look.scores else {}), **look.tasks})
        for look in looks(run)
        if look.tasks
    ]


def _waypoint(run: Run, tokens: float, scores: Scores) -> Waypoint:
    """Return a waypoint, with what belongs to a domain of the run apart from the rest."""
    of = [(matrix.task_domains or {}).items() for matrix in run.matrices.values()]
    own = {*run.domains, *(task for each in of for task, domain in each if domain in run.domains)}
    learnt, kept = (
        {metric: {name: value for name, value in by_name.items() if (name in own) is side}
         for metric, by_name in scores.items()}
        for side in (True, False)
    )  # fmt: skip
    return Waypoint(tokens=tokens, learnt=learnt, kept=kept)


def mean_of(runs: Sequence[Sequence[Waypoint]]) -> list[Waypoint]:
    """Return waypoint by waypoint the mean over runs of one recipe, of the scores that all of them have."""
    return [
        Waypoint(
            tokens=sum(at.tokens for at in each) / len(each),
            learnt=_mean([at.learnt for at in each]),
            kept=_mean([at.kept for at in each]),
        )
        for each in zip(*runs, strict=False)
    ]


def _mean(each: Sequence[Scores]) -> dict[str, dict[str, float]]:
    return {
        metric: {
            column: sum(scores[metric][column] for scores in each) / len(each)
            for column in columns
            if all(column in scores.get(metric, {}) for scores in each)
        }
        for metric, columns in each[0].items()
    }


_REPEATED = ("loss", "perplexity")
"""Metrics that repeat bits per byte."""


def _row(matrices: Mapping[str, ScoreTable], row: int) -> Scores:
    return {
        name: {column: score for column in matrix.columns if (score := matrix.cell(row, column).value) is not None}
        for name, matrix in matrices.items()
    }
