"""Scores inside a stage (`evaluation.every`, `evaluation.tasks_every`): lines of ``metrics.jsonl``, for curves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from everlearn.evaluation import METRICS, Cell
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import Conditions, Task
from everlearn.predictors import Checkpoint
from everlearn.run.forecast import SETS
from everlearn.run.open_run import OpenRun
from everlearn.run.progress import Counted
from everlearn.seeding import seeded
from everlearn.tasks.held_out import HeldOutText

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
        run: is told what is scored and how long it takes.
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
        run: OpenRun,
    ) -> None:
        self.every, self.sets, self.tasks, self.how = every, sets, tasks, how
        self.model, self.tokens, self.write, self.run = model, tokens, write, run

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """After an optimizer step."""
        step, last = state.global_step, state.global_step == state.max_steps
        text_due, tasks_due = (every is not None and not step % every for every in self.every)
        sets = self.sets if text_due or (last and self.every[0] is not None) else []
        tasks = self.tasks if tasks_due and not last else []
        if not sets and not tasks:
            return
        found: dict[str, Any] = {}
        work = sum(task.work(1).units for task in (*sets, *tasks))
        with (
            seeded("curves", step),
            self.run.reporter.activity(f"Scores after step {step:,}", work) as tell,
        ):
            done = Counted(tell)
            if sets:
                metric = METRICS["bits_per_byte"]
                found[metric.name] = {each.name: metric.score(self._cell(each, SETS, done)) for each in sets}
            if tasks:
                scores: dict[str, dict[str, float]] = {}
                for task in tasks:
                    cell = self._cell(task, task.name, done)
                    for metric in metrics_of([cell]):
                        scores.setdefault(metric.name, {})[task.name] = metric.score(cell)
                found[TASKS] = scores
        if found and self.write is not None:
            self.write({"step": step, "tokens": self.tokens(), **found})

    def _cell(self, task: Task, kind: str, done: Counted) -> Cell:
        started, how = time.monotonic(), replace(self.how, progress=done.part())
        cell = task.measure(Checkpoint(self.model(), how.objective), how)
        self.run.took(kind, 1, time.monotonic() - started)
        return cell
