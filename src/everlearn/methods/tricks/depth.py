"""Common parts of methods that treat layers by depth: learning rates, and gradual unfreezing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from everlearn.methods.base import Mask, Method, MethodConfig, Stage


def scaled_rates(groups: Sequence[Mapping[str, Any]], factors: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return the parameter groups, split if parameters of one group have different learning rates.

    Args:
        groups: groups with a learning rate each.
        factors: id of a parameter → factor of the learning rate of its group; 1 by default.
    """
    result: list[dict[str, Any]] = []
    for group in groups:
        parts: dict[float, list[nn.Parameter]] = defaultdict(list)
        for parameter in group["params"]:
            parts[factors.get(id(parameter), 1.0)].append(parameter)
        result += [{**group, "params": of, "lr": group["lr"] * factor} for factor, of in parts.items()]
    return result


class Thaws(Method):
    """Base class of methods with layers that are frozen until a given step (gradual unfreezing).

    The gradient of a frozen parameter is removed before clipping and the optimizer, as if it were not trained: it does
    not count in the norm, neither momentum nor weight decay moves it, and the optimizer has no state for it before it
    thaws. With a learning rate of 0 instead, Adam would accumulate moments, and unused gradients would count in the
    clipping. With a gradient of 0, Adam would count steps, and the first ones after the thaw would be three times as
    long (m is corrected by 1 − β₁ᵗ ≈ 1 although it holds a tenth of one gradient, √v although it holds a thousandth).
    """

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._starts: list[tuple[list[nn.Parameter], int]] = []

    def thaw(self, stage: Stage, starts: Iterable[tuple[Iterable[str], int]]) -> None:
        """Set from which step on parameters are trained, by name; call it in ``begin_training``."""
        parameters = dict(stage.model.named_parameters())
        self._starts = [([parameters[name] for name in names], start) for names, start in starts if start > 0]

    def mask(self, stage: Stage) -> Mask | None:
        """Remove the gradients of frozen parameters, and placeholder states of those that thaw now; return no mask."""
        for parameters, start in self._starts:
            for parameter in parameters:
                if stage.step < start:
                    parameter.grad = None
                elif stage.step == start and stage.optimizer is not None:
                    stage.optimizer.state.pop(parameter, None)
        return None

    def after_step(self, stage: Stage) -> None:
        """Create zero states of frozen parameters under FSDP2, as torch loads states for all parameters or none."""
        step, optimizer = stage.step, stage.optimizer
        if optimizer is None or not optimizer.state:
            return
        like, state = next(iter(optimizer.state.items()))
        for parameters, start in self._starts:
            for parameter in parameters:
                if step < start and isinstance(parameter, DTensor) and parameter not in optimizer.state:
                    optimizer.state[parameter] = {
                        key: torch.zeros_like(parameter) if value.shape == like.shape else value.clone()
                        for key, value in state.items()
                    }

    def detach(self, stage: Stage) -> None:
        self._starts = []
