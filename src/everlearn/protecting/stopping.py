"""End a protected training when held-out text is forgotten beyond a bound (`stop`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from everlearn.errors import MethodError, did_you_mean
from everlearn.model.vocabulary_head import unwrap
from everlearn.protecting.held_out import ScoredText

Bounds = float | Mapping[str, float]
"""Bits per byte that each text may get worse; or one number for all."""
EVERY = 50


class StopWhenForgetting(TrainerCallback):
    """Measure held-out texts during a training, and end it when a loss has increased by more than its bound.

    The weights of the last measurement within the bounds, or before the training, are restored; the state of the
    methods is not.

    Args:
        texts: the held-out texts, which are scored before the training.
        bounds: bits per byte, for all or by name.
        every: steps between two measurements; the last step is measured too.
        batch_size: rows of a forward pass.
        bf16: whether to compute in bfloat16.

    Raises:
        MethodError: there is no such text, or a bound is not a number of at least 0.
    """

    def __init__(self, texts: Sequence[ScoredText], bounds: Bounds, every: int, batch_size: int, bf16: bool) -> None:
        self._bounds = _by_name(bounds, [text.name for text in texts])
        self._texts = [text for text in texts if text.name in self._bounds]
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise MethodError(f"`stop_every` is a number of steps, 1 or more (got {every!r}).")
        self._every, self._batch_size, self._bf16 = every, batch_size, bf16
        self._within: tuple[int, dict[str, Tensor]] = (0, {})
        self.told: str | None = None
        """Why the training was stopped, as a sentence; None if it was not."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._keep(state.global_step, kwargs["model"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure at some steps; then store the weights, or restore the stored ones and stop."""
        step = state.global_step
        if step % self._every and step < state.max_steps:
            return
        measured = [text.forgetting(kwargs["model"], self._batch_size, self._bf16) for text in self._texts]
        worse = [each.forgotten.value if each.forgotten.value is not None else math.nan for each in measured]
        exceeded = [each for each, value in zip(measured, worse, strict=True) if not value <= self._bounds[each.name]]
        exceeded = broadcast_object_list([exceeded])[0]  # all processes must make the same decision
        if not exceeded:
            self._keep(step, kwargs["model"])
            return
        kept, weights = self._within
        with torch.no_grad():
            for name, parameter in _trained(kwargs["model"]).items():
                parameter.copy_(weights[name])
        which = f"those of step {kept:,}" if kept else "those before the training"
        bound = self._bounds[exceeded[0].name]
        self.told = f"Stopped at step {step:,}: {exceeded[0]} `stop` allows {bound:g}. The weights are {which}."
        control.should_training_stop, control.should_save = True, False

    def _keep(self, step: int, model: nn.Module) -> None:
        self._within = step, {name: p.detach().to("cpu", copy=True) for name, p in _trained(model).items()}


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in unwrap(model).named_parameters() if parameter.requires_grad}


def _by_name(bounds: Bounds, names: Sequence[str]) -> dict[str, float]:
    """Return the bound of each text that has one."""
    if not names:
        raise MethodError("`stop` needs text to measure on: give `held_out`.")
    by_name = dict(bounds) if isinstance(bounds, Mapping) else dict.fromkeys(names, bounds)
    for name, bound in by_name.items():
        if name not in names:
            raise MethodError(f"`stop` has '{name}', which is no text of `held_out`.{did_you_mean(name, list(names))}")
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound < float("inf"):
            raise MethodError(f"`stop` of '{name}' is a number of bits per byte, 0 or more (got {bound!r}).")
    return by_name
