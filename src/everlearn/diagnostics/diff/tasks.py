"""Compare two models on one end task: the paired difference of their scores, and the examples that changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from everlearn.config.reading import read_yaml_file
from everlearn.errors import RecipeError
from everlearn.evaluation import TASK_KINDS, Cell, Estimate, Metric, Task, resample
from everlearn.evaluation.cell import CLASSIFICATION
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import TaskConfig, task_config

EXAMPLES = 5
"""Number of examples shown for each direction."""
LONGEST = 600
"""Maximum characters shown of an example: its end, where the question is."""


@dataclass(frozen=True)
class Flip:
    """An example whose outcome changed.

    Attributes:
        number: number of the example, from 1.
        text: text of the example; only its end if it is long.
        before: score of the earlier model.
        after: score of the later model.
        said_before: answer of the earlier model; empty if it does not answer in words.
        said_after: answer of the later model.
    """

    number: int
    text: str
    before: float
    after: float
    said_before: str = ""
    said_after: str = ""


@dataclass(frozen=True)
class TaskDifference:
    """The difference of two models on one task.

    Attributes:
        name: name of the task.
        kind: kind of the task.
        metric: title of the main metric.
        unit: unit of the metric.
        higher_is_better: whether higher scores are better.
        examples: number of examples.
        before: score of the earlier model.
        after: score of the later model.
        difference: after − before, paired.
        worse: number of examples that got worse.
        better: number of examples that got better.
        lost: examples that got worse.
        gained: examples that got better.
    """

    name: str
    kind: str
    metric: str
    unit: str
    higher_is_better: bool
    examples: int
    before: Estimate
    after: Estimate
    difference: Estimate
    worse: int
    better: int
    lost: list[Flip]
    gained: list[Flip]

    @property
    def loss(self) -> Estimate:
        """Return how much worse the later model is; positive is worse for every metric."""
        if not self.higher_is_better:
            return self.difference
        low, high = self.difference.interval or (None, None)
        flipped = (None if x is None else -x for x in (self.difference.value, high, low))
        return Estimate(*flipped)


def read_tasks(path: Path) -> list[TaskConfig]:
    """Read the end tasks of a YAML file: a list of them, a mapping with `end_tasks`, or the keys of a single task.

    Raises:
        RecipeError: the file cannot be read, has no task, or has one that fine-tunes.
    """
    raw = read_yaml_file(path, "file of end tasks")
    listed = raw.get("end_tasks", [raw]) if isinstance(raw, dict) else raw
    if not isinstance(listed, list) or not listed:
        raise RecipeError(
            f"'{path}' has no end tasks. Write a list of tasks, as in a recipe's `end_tasks`: "
            "`- {name: …, kind: choice, test: …}`."
        )
    for number, each in enumerate(listed):
        kind = str(each.get("kind", CLASSIFICATION)) if isinstance(each, dict) else ""
        if kind in TASK_KINDS and TASK_KINDS[kind].fine_tunes:
            raise RecipeError(
                f"End task '{each.get('name', number)}' in '{path}' is of kind {kind}, which fine-tunes a copy of each "
                "model; `--task` takes only tasks without fine-tuning. Use `everlearn evaluate`, or a kind such as "
                "choice."
            )
    return [task_config(each, f"end_tasks.{number}") for number, each in enumerate(listed)]


def compare(task: Task, before: Cell, after: Cell) -> TaskDifference:
    """Compare two models' outcomes on the same examples under the task's main metric."""
    metric = metrics_of([before, after])[0]
    scores = resample([before, after], [metric], seed=("diff", task.name))[metric.name]
    single = [_of_each(metric, cell) for cell in (before, after)]
    change = (single[1] - single[0]) * (1 if metric.higher_is_better else -1)
    order = np.argsort(change, kind="stable")
    worse, better = [i for i in order.tolist() if change[i] < 0], [i for i in order[::-1].tolist() if change[i] > 0]
    texts, answered = task.examples(), [task.answered(cell) for cell in (before, after)]

    def flip(i: int) -> Flip:
        answers = [str(own[i]) if len(own) else "" for own in answered]
        return Flip(i + 1, texts[i][-LONGEST:], float(single[0][i]), float(single[1][i]), *answers)

    return TaskDifference(
        task.name,
        task.kind,
        metric.title,
        metric.unit,
        metric.higher_is_better,
        len(before),
        scores.of(0),
        scores.of(1),
        scores.change(),
        len(worse),
        len(better),
        [flip(i) for i in worse[:EXAMPLES]],
        [flip(i) for i in better[:EXAMPLES]],
    )


def _of_each(metric: Metric, cell: Cell) -> NDArray[np.float64]:
    """Return the score of each example alone, [n]."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        alone = metric.value(np.moveaxis(metric.terms(cell), -1, 0).astype(np.float64), cell)
    return np.nan_to_num(alone.mean(-1))
