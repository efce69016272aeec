"""Scores inside a stage (`evaluation.every`, `evaluation.tasks_every`): lines of ``metrics.jsonl``, for curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from everlearn.evaluation import METRICS, Cell, Checkpoint, HeldOutText
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import Conditions, Task
from everlearn.seeding import seeded

TASKS = "tasks"
"""The key of a line under which the end tasks stand: metric → end task → score."""


class StageCurves(TrainerCallback):
    """Scores the model that is being trained, as it stands, after every so many steps.

    It is seen in evaluation mode and without gradients; no generator, weight or optimizer is touched, so the stage
    trains on as if nobody had looked. A resumed stage writes the lines after its checkpoint again.

    Args:
        every: steps between two scores of held-out text, and of the end tasks; None for none.
        sets: held-out sets.
        tasks: end tasks that fine-tune nothing. At the last step they are not asked: the row after the stage has them.
        how: how they are measured.
        model: gives the model without any distributed wrapper.
        tokens: gives the tokens trained on so far.
        write: takes a line; None on processes that only take part.
    """

    def __init__(
        self,
        every: tuple[int | None, int | None],
        sets: list[HeldOutText],
        tasks: list[Task],
        how: Conditions,
        model: Callable[[], nn.Module],
        tokens: Callable[[], int],
        write: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self.every, self.sets, self.tasks, self.how = every, sets, tasks, how
        self.model, self.tokens, self.write = model, tokens, write

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """After an optimizer step."""
        step, last = state.global_step, state.global_step == state.max_steps
        text_due, tasks_due = (every is not None and not step % every for every in self.every)
        found: dict[str, Any] = {}
        with seeded("curves", step):
            if text_due or (last and self.every[0] is not None):
                metric = METRICS["bits_per_byte"]
                found[metric.name] = {each.name: metric.score(self._cell(each)) for each in self.sets}
            if tasks_due and not last:
                scores: dict[str, dict[str, float]] = {}
                for task in self.tasks:
                    cell = self._cell(task)
                    for metric in metrics_of([cell]):
                        scores.setdefault(metric.name, {})[task.name] = metric.score(cell)
                found[TASKS] = scores
        if found and self.write is not None:
            self.write({"step": step, "tokens": self.tokens(), **found})

    def _cell(self, task: Task) -> Cell:
        return task.measure(Checkpoint(self.model(), self.how.objective), self.how)
