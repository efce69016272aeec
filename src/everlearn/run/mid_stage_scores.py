"""Score the model during a stage (`evaluation.every`, `evaluation.tasks_every`) and log it in ``metrics.jsonl``."""

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
from everlearn.run.forgetting_guard import ForgettingGuard
from everlearn.run.open_run import OpenRun
from everlearn.run.progress import Counted
from everlearn.seeding import seeded
from everlearn.tasks.held_out import HeldOutText

TASKS = "tasks"
"""Key of a line for the end tasks: metric → end task → score."""


class StageCurves(TrainerCallback):
    """Score the model in training at regular steps.

    The model is put in evaluation mode and runs without gradients. Generators, weights and optimizer are left as they
    were, so training continues as without the scores. A resumed stage writes the lines after its checkpoint again.

    Args:
        every: steps between two scores of held-out text, and of the end tasks; None to leave them out.
        sets: the held-out sets.
        tasks: end tasks without fine-tuning. They are skipped at the last step, since the row after the stage has them.
        how: conditions of the evaluation.
        model: returns the model without any distributed wrapper.
        tokens: returns the number of tokens trained on so far.
        write: writes a line; None on processes other than the first.
        run: the open run, which reports progress and counts the time.
        guard: decides from the scores of held-out text whether the domain ends here (`stop`).
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
        guard: ForgettingGuard | None = None,
    ) -> None:
        self.every, self.sets, self.tasks, self.how, self.guard = every, sets, tasks, how, guard
        self.model, self.tokens, self.write, self.run = model, tokens, write, run

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Score the model if scores are due after this optimizer step."""
        step, last = state.global_step, state.global_step == state.max_steps
        text_due, tasks_due = (every is not None and not step % every for every in self.every)
        sets = self.sets if text_due or (last and self.every[0] is not None) else []
        tasks = self.tasks if tasks_due and not last else []
        if not sets and not tasks:
            return
        line: dict[str, Any] = {}
        cells: dict[str, Cell] = {}
        work = sum(task.work(1).units for task in (*sets, *tasks))
        with (
            seeded("curves", step),
            self.run.reporter.activity(f"Scores after step {step:,}", work) as tell,
        ):
            done = Counted(tell)
            if sets:
                metric = METRICS["bits_per_byte"]
                cells = {each.name: self._cell(each, SETS, done) for each in sets}
                line[metric.name] = {name: metric.score(cell) for name, cell in cells.items()}
            if tasks:
                scores: dict[str, dict[str, float]] = {}
                for task in tasks:
                    cell = self._cell(task, task.name, done)
                    for metric in metrics_of([cell]):
                        scores.setdefault(metric.name, {})[task.name] = metric.score(cell)
                line[TASKS] = scores
        if line and self.write is not None:
            self.write({"step": step, "tokens": self.tokens(), **line})
        if self.guard is not None and cells:
            self.guard.decide(state, control, cells, self.run.reporter.say)

    def _cell(self, task: Task, kind: str, done: Counted) -> Cell:
        started, how = time.monotonic(), replace(self.how, progress=done.part())
        cell = task.measure(Checkpoint(self.model(), how.objective), how)
        self.run.took(kind, 1, time.monotonic() - started)
        return cell
