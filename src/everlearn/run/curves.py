"""Held-out scores inside a stage (`evaluation.every`): lines of ``metrics.jsonl``, for curves over tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from everlearn.evaluation import METRICS, Checkpoint, HeldOutText
from everlearn.evaluation.task import Conditions
from everlearn.seeding import seeded


class StageCurves(TrainerCallback):
    """Scores the model that is being trained, as it stands, after every so many steps.

    It is seen in evaluation mode and without gradients; no generator, weight or optimizer is touched, so the stage
    trains on as if nobody had looked. A resumed stage writes the lines after its checkpoint again.

    Args:
        every: steps between two scores.
        tasks: held-out sets.
        how: how they are measured.
        model: gives the model without any distributed wrapper.
        tokens: gives the tokens trained on so far.
        write: takes a line; None on processes that only take part.
    """

    def __init__(
        self,
        every: int,
        tasks: list[HeldOutText],
        how: Conditions,
        model: Callable[[], nn.Module],
        tokens: Callable[[], int],
        write: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self.every, self.tasks, self.how = every, tasks, how
        self.model, self.tokens, self.write = model, tokens, write

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """After an optimizer step."""
        if state.global_step % self.every and state.global_step != state.max_steps:
            return
        metric, found = METRICS["bits_per_byte"], {}
        with seeded("curves", state.global_step):
            for task in self.tasks:
                cell = task.measure(Checkpoint(self.model(), self.how.objective), self.how)
                found[task.name] = metric.score(cell)
        if self.write is not None:
            self.write({"step": state.global_step, "tokens": self.tokens(), metric.name: found})
