"""What the methods that treat layers by their depth have in common: rates, and layers that thaw one after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from everlearn.methods.base import Stage


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
        self._starts = [([parameters[name] for name in names], start) for names, start in starts if start > 0]

    def hold(self, step: int) -> None:
        """Before clipping: take the gradients of what is frozen at a step."""
        for parameters, start in self._starts:
            if step < start:
                for parameter in parameters:
                    parameter.grad = None
