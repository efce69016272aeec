"""How learning and forgetting went together while a run trained: points from the base model to the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from everlearn.comparison.runs import Matrix, Run
from everlearn.comparison.training_log import INSIDE, looks
from everlearn.evaluation.metrics import METRICS
from everlearn.evaluation.quantities import QUANTITIES

Scores = Mapping[str, Mapping[str, float]]
"""Metric → held-out set or end task → score."""
YARDSTICKS = ("choice_accuracy_per_byte",)
"""What is said of general knowledge first: of answers by likelihood, that which counts an option's length."""


@dataclass(frozen=True)
class Waypoint:
    """What was measured when so many tokens had been learnt from.

    Attributes:
        tokens: since the start of the stream.
        learnt: of the held-out sets and end tasks of the domains that are learnt.
        kept: of the others: general text, and tasks of no domain.
    """

    tokens: float
    learnt: Scores
    kept: Scores


@dataclass(frozen=True)
class Axes:
    """What is drawn against what.

    Attributes:
        learnt: metric of what is learnt, and its columns.
        kept: metric of what should be kept, and its columns.
    """

    learnt: tuple[str, tuple[str, ...]]
    kept: tuple[str, tuple[str, ...]]

    @property
    def labels(self) -> tuple[str, str]:
        """Of the vertical axis and of the horizontal one."""
        (learnt, of), (kept, others) = self.learnt, self.kept
        return f"{_title(learnt)} learnt ({', '.join(of)})", f"{_title(kept)} forgotten ({', '.join(others)})"

    def points(self, waypoints: Sequence[Waypoint]) -> list[tuple[float, float]]:
        """(forgotten, learnt) at each of them, both against the first; without those where something is missing."""
        found = []
        for at in waypoints:
            learnt = change("learnt", self.learnt, waypoints[0].learnt, at.learnt)
            forgotten = change("general_drift", self.kept, waypoints[0].kept, at.kept)
            if learnt and forgotten:
                found.append(tuple(sum(each.values()) / len(each) for each in (forgotten, learnt)))
        return found  # type: ignore[return-value]


def _title(metric: str) -> str:
    known = METRICS[metric]
    return known.title if known.unit == "fraction" else known.unit


def change(quantity: str, of: tuple[str, Iterable[str]], base: Scores, now: Scores) -> dict[str, float]:
    """A quantity of each column of a metric, between the base model and a moment; empty where one is missing."""
    metric, columns = of
    at = "learnt" if quantity == "learnt" else "final"
    found = {}
    for column in columns:
        both = {"base": base.get(metric, {}).get(column), at: now.get(metric, {}).get(column)}
        known = {moment: value for moment, value in both.items() if value is not None}
        if len(known) < len(both):
            return {}
        found[column] = QUANTITIES[quantity].at(known, METRICS[metric].higher_is_better)
    return found


def axes(waypoint: Waypoint) -> list[Axes]:
    """A picture for each metric of what is learnt, against the tasks of no domain; none where there is no such task.

    The last one is text against text: a small model's answers are near chance, before and after.
    """
    kept = {
        metric: tuple(found) for metric, found in waypoint.kept.items() if METRICS[metric].unit == "fraction" and found
    }
    if not kept:
        return []
    metric = next((name for name in YARDSTICKS if name in kept), next(iter(kept)))
    found = [Axes((name, tuple(of)), (metric, kept[metric])) for name, of in waypoint.learnt.items() if of]
    own, others = (tuple(scores.get(INSIDE, {})) for scores in (waypoint.learnt, waypoint.kept))
    return [*found, *([Axes((INSIDE, own), (INSIDE, others))] if own and others else [])]


def moments(run: Run) -> list[Waypoint]:
    """From the base model over what was asked inside the stages (`evaluation.tasks_every`) to the end of the stream.

    Of held-out text each moment has what was scored at the same step; nothing where no task was asked inside a stage.
    """
    inside = [look for look in looks(run) if look.tasks]
    if not inside:
        return []
    matrices = {name: matrix for name, matrix in run.matrices.items() if name in METRICS and name not in _REPEATED}
    total = sum(float(stage.get("tokens") or 0) for stage in run.cost.get("stages") or [])
    own = {task for m in run.matrices.values() for task, domain in m.task_domains.items() if domain in run.domains}

    def waypoint(tokens: float, scores: Scores) -> Waypoint:
        sides = [
            {metric: {name: v for name, v in found.items() if (name in own or name in run.domains) is side}
             for metric, found in scores.items()}
            for side in (True, False)
        ]  # fmt: skip
        return Waypoint(tokens, *sides)

    found = [waypoint(0.0, _row(matrices, 0))]
    found += [
        waypoint(look.tokens, {**({INSIDE: look.scores} if look.scores else {}), **look.tasks}) for look in inside
    ]
    return found if run.unfinished else [*found, waypoint(total, _row(matrices, -1))]


def mean_of(runs: Sequence[Sequence[Waypoint]]) -> list[Waypoint]:
    """One by one the mean over runs of one recipe, of what all of them have; nothing where one has none."""
    return [
        Waypoint(
            sum(at.tokens for at in each) / len(each),
            _mean([at.learnt for at in each]),
            _mean([at.kept for at in each]),
        )
        for each in zip(*runs, strict=False)
    ]


def _mean(each: Sequence[Scores]) -> Scores:
    return {
        metric: {
            column: sum(scores[metric][column] for scores in each) / len(each)
            for column in columns
            if all(column in scores.get(metric, {}) for scores in each)
        }
        for metric, columns in each[0].items()
    }


_REPEATED = ("loss", "perplexity")
"""They say what bits per byte say."""


def _row(matrices: Mapping[str, Matrix], row: int) -> Scores:
    return {
        name: {column: score for column in matrix.columns if (score := matrix.cell(row, column).value) is not None}
        for name, matrix in matrices.items()
    }
