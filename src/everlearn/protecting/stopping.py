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
from everlearn.model.head import unwrap
from everlearn.protecting.held_out import Forgetting, ScoredText

Bounds = float | Mapping[str, float]
"""Bits per byte that each text may get worse; or one number for all."""
EVERY = 50


class StopWhenForgetting(TrainerCallback):
    """Measure held-out text during a training, and end it when one got worse than its bound.

    The weights go back to the last measurement within the bounds, or to those before the training. What the methods
    have accumulated since then is kept.

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
        """What happened, as a sentence; None if no bound was passed."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the weights before the training."""
        self._keep(state.global_step, kwargs["model"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Measure if it is time, and keep the weights or go back to those that were kept."""
        step = state.global_step
        if step % self._every and step < state.max_steps:
            return
        found = [text.forgetting(kwargs["model"], self._batch_size, self._bf16) for text in self._texts]
        worse = [each.forgotten.value if each.forgotten.value is not None else math.nan for each in found]
        passed = [e for e, value in zip(found, worse, strict=True) if not value <= self._bounds[e.name]]
        passed = broadcast_object_list([passed])[0]  # all processes must decide the same
        if not passed:
            self._keep(step, kwargs["model"])
            return
        kept, weights = self._within
        with torch.no_grad():
            for name, parameter in _trained(kwargs["model"]).items():
                parameter.copy_(weights[name])
        self.told = self._sentence(step, kept, passed[0])
        control.should_training_stop, control.should_save = True, False

    def _keep(self, step: int, model: nn.Module) -> None:
        self._within = step, {name: p.detach().to("cpu", copy=True) for name, p in _trained(model).items()}

    def _sentence(self, step: int, kept: int, passed: Forgetting) -> str:
        where = f"those of step {kept:,}" if kept else "those before the training"
        return (
            f"Stopped at step {step:,}: {passed} `stop` allows {self._bounds[passed.name]:g}. The weights are {where}."
        )


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in unwrap(model).named_parameters() if parameter.requires_grad}


def _by_name(bounds: Bounds, names: Sequence[str]) -> dict[str, float]:
    """Return the bound of each text that has one."""
    if not names:
        raise MethodError("`stop` needs text to measure on: give `held_out`.")
    given = dict(bounds) if isinstance(bounds, Mapping) else dict.fromkeys(names, bounds)
    for name, bound in given.items():
        if name not in names:
            raise MethodError(f"`stop` has '{name}', which is no text of `held_out`.{did_you_mean(name, list(names))}")
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound < float("inf"):
            raise MethodError(f"`stop` of '{name}' is a number of bits per byte, 0 or more (got {bound!r}).")
    return given
