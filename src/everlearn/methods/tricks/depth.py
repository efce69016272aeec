"""What the methods that treat layers by their depth have in common: rates, and layers that thaw one after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from everlearn.methods.base import Mask, Method, MethodConfig, Stage


def scaled_rates(groups: Sequence[Mapping[str, Any]], factors: Mapping[int, float]) -> list[dict[str, Any]]:
    """The optimizer's groups, divided where parameters of one group have different rates.

    Args:
        groups: with a learning rate each.
        factors: id of a parameter to the share of its group's rate; 1 where it is not named.
    """
    made: list[dict[str, Any]] = []
    for group in groups:
        parts: dict[float, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            parts[factors.get(id(parameter), 1.0)].append(parameter)
        made += [{**group, "params": of, "lr": group["lr"] * factor} for factor, of in parts.items()]
    return made


class Thawing:
    """Layers that are frozen until their step comes.

    A frozen parameter has no gradient when clipping and the optimizer come by, as if it were not trained: nothing of it
    counts in the norm, neither momentum nor weight decay moves it, and the optimizer has no state of it before it
    thaws. A learning rate of 0 would let Adam gather moments meanwhile, and clip the others by gradients that change
    nothing; a gradient of 0 would let Adam count steps, and make the first ones after the thaw three times as long
    (m is corrected by 1 − β₁ᵗ ≈ 1 where it holds a tenth of one gradient, √v where it holds a thousandth).

    Args:
        stage: its model as it is trained.
        starts: names of parameters, and the step of the stage at which they begin to move.
    """

    def __init__(self, stage: Stage, starts: Iterable[tuple[Iterable[str], int]]) -> None:
        parameters = dict(stage.model.named_parameters())
        self._stage = stage
        self._starts = [([parameters[name] for name in names], start) for names, start in starts if start > 0]

    def before_clipping(self) -> None:
        """Take the gradients of what is frozen, and the empty states of what thaws now."""
        step, optimizer = self._stage.step, self._stage.optimizer
        for parameters, start in self._starts:
            for parameter in parameters:
                if step < start:
                    parameter.grad = None
                elif step == start and optimizer is not None:
                    optimizer.state.pop(parameter, None)

    def after_update(self) -> None:
        """Under FSDP2, give what is frozen an empty state: torch loads an optimizer that has one for all, or none."""
        step, optimizer = self._stage.step, self._stage.optimizer
        if optimizer is None or not optimizer.state:
            return
        like, theirs = next(iter(optimizer.state.items()))
        for parameters, start in self._starts:
            for parameter in parameters:
                if step < start and isinstance(parameter, DTensor) and parameter not in optimizer.state:
                    optimizer.state[parameter] = {
                        key: torch.zeros_like(parameter) if value.shape == like.shape else value.clone()
                        for key, value in theirs.items()
                    }


class Thaws(Method):
    """Base of the methods whose layers thaw one after another."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._thawing: Thawing | None = None

    def thaw(self, stage: Stage, starts: Iterable[tuple[Iterable[str], int]]) -> None:
        """For ``begin_training``: what thaws when, as :class:`Thawing` takes it."""
        self._thawing = Thawing(stage, starts)

    def mask(self, stage: Stage) -> Mask | None:
        """Nothing is held back in part: what is frozen has no gradient at all."""
        if self._thawing is not None:
            self._thawing.before_clipping()
        return None

    def after_step(self, stage: Stage) -> None:
        """What a checkpoint needs of what is frozen."""
        if self._thawing is not None:
            self._thawing.after_update()

    def detach(self, stage: Stage) -> None:
        """Everything moves again."""
        self._thawing = None
