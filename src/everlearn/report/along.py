"""How learning and forgetting went together while a run trained: points from the base model to the end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from everlearn.evaluation.metrics import METRICS
from everlearn.evaluation.quantities import QUANTITIES
from everlearn.report.runs import Matrix, Run
from everlearn.report.training_log import INSIDE, looks

Scores = Mapping[str, Mapping[str, float]]
"""Metric → held-out set or end task → score."""
YARDSTICKS = ("choice_accuracy_per_byte",)
"""What is said of general knowledge first: of answers by likelihood, that which counts an option's length."""


@dataclass(frozen=True)
class Waypoint:
    """What was measured when so many tokens had been learnt from."""

    tokens: float
    scores: Scores


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

    def points(self, moments: Sequence[Waypoint]) -> list[tuple[float, float]]:
        """(forgotten, learnt) at each moment, both against the first; without those where something is missing."""
        found = []
        for moment in moments:
            learnt = _mean("learnt", "learnt", *self.learnt, moments[0].scores, moment.scores)
            forgotten = _mean("general_drift", "final", *self.kept, moments[0].scores, moment.scores)
            if not math.isnan(learnt + forgotten):
                found.append((forgotten, learnt))
        return found


def _title(metric: str) -> str:
    known = METRICS[metric]
    return known.title if known.unit == "fraction" else known.unit


def _mean(quantity: str, at: str, metric: str, columns: Sequence[str], base: Scores, now: Scores) -> float:
    """A quantity's mean over columns; NaN where a score of one is missing."""
    better, values = METRICS[metric].higher_is_better, []
    for column in columns:
        moments = {"base": base.get(metric, {}).get(column), at: now.get(metric, {}).get(column)}
        known = {moment: value for moment, value in moments.items() if value is not None}
        values.append(QUANTITIES[quantity].at(known, better) if len(known) == 2 else math.nan)
    return sum(values) / len(values)


def axes(scores: Scores, learnt: Iterable[str]) -> list[Axes]:
    """A picture for each metric of what is learnt, against the end tasks that belong to no domain.

    Args:
        scores: of one moment: what there is.
        learnt: held-out sets and end tasks of the domains that are learnt.
    """
    own = set(learnt)
    kept = {
        metric: tuple(sorted(found.keys() - own))
        for metric, found in scores.items()
        if METRICS[metric].unit == "fraction" and found.keys() - own
    }
    if not kept:
        return []
    metric = next((name for name in YARDSTICKS if name in kept), next(iter(kept)))
    columns = {name: tuple(sorted(found.keys() & own)) for name, found in scores.items()}
    return [Axes((name, of), (metric, kept[metric])) for name, of in columns.items() if of]


def moments(run: Run) -> list[Waypoint]:
    """From the base model over what was asked inside the stages (`evaluation.tasks_every`) to the end of the stream.

    Of held-out text each moment has what was scored at the same step; nothing where no task was asked inside a stage.
    """
    inside = [look for look in looks(run) if look.tasks]
    if not inside:
        return []
    matrices = {name: matrix for name, matrix in run.matrices.items() if name in METRICS and name not in _REPEATED}
    total = sum(float(stage.get("tokens") or 0) for stage in run.cost.get("stages") or [])
    found = [Waypoint(0.0, _row(matrices, 0))]
    found += [
        Waypoint(look.tokens, {INSIDE: look.scores, **look.tasks} if look.scores else look.tasks) for look in inside
    ]
    if not run.unfinished:
        found.append(Waypoint(total, _row(matrices, -1)))
    return found


def mean_of(runs: Sequence[Sequence[Waypoint]]) -> list[Waypoint]:
    """Waypoint by moment the mean over runs of one recipe, of what all of them have; nothing where one has none."""
    found = []
    for each in zip(*runs, strict=False):
        scores = {
            metric: {
                column: sum(moment.scores[metric][column] for moment in each) / len(each)
                for column in columns
                if all(column in moment.scores.get(metric, {}) for moment in each)
            }
            for metric, columns in each[0].scores.items()
        }
        found.append(Waypoint(sum(moment.tokens for moment in each) / len(each), scores))
    return found


_REPEATED = ("loss", "perplexity")
"""They say what bits per byte say."""


def _row(matrices: Mapping[str, Matrix], row: int) -> Scores:
    return {
        name: {column: score for column in matrix.columns if (score := matrix.cell(row, column).value) is not None}
        for name, matrix in matrices.items()
    }


def learnt_columns(run: Run) -> set[str]:
    """Held-out sets and end tasks that belong to a domain of the stream."""
    tasks = {task for m in run.matrices.values() for task, domain in m.task_domains.items() if domain in run.domains}
    return {*run.domains, *tasks}
