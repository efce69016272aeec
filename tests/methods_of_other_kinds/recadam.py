"""RecAdam: an optimizer that recalls the weights that the domain began with."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import nn
from torch.optim import AdamW, Optimizer

from everlearn.methods.base import Cost, Method, MethodConfig, Stage, register


@register
class RecAdam(Method):
    """RecAdam (arXiv 2004.12651, eq. 9): θ ← θ − λ_t · (Adam's step) − (1 − λ_t) · η · γ · (θ − θ*).

    λ_t = 1 / (1 + exp(−k (t − t₀))) and θ* the weights that the domain began with.
    """

    name = "recadam"
    title = "RecAdam"
    paper = "https://arxiv.org/abs/2004.12651"
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}

    class Config(MethodConfig):
        """Options of RecAdam."""

        strength: float = Field(50.0, ge=0, allow_inf_nan=False)
        """γ; 0 is plain training."""
        rate: float = Field(0.5, gt=0, allow_inf_nan=False)
        """k."""

    def cost(self, model: nn.Module) -> Cost:
        """θ*, beside Adam's own state."""
        trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        return Cost(memory_bytes=trained if self.config.strength else 0)

    def optimizer(self, stage: Stage, optimizer: Optimizer) -> Optimizer:
        """Adam that recalls, with the same groups; λ is ½ in the middle of the domain."""
        if not self.config.strength:
            return optimizer
        return Recalling(optimizer.param_groups, self.config.strength, self.config.rate, stage)


class Recalling(AdamW):
    """The optimizer; θ* is a part of its state."""

    def __init__(self, groups: list[dict[str, Any]], strength: float, rate: float, stage: Stage) -> None:
        super().__init__(groups)
        self.strength, self.rate, self.stage = strength, rate, stage

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step."""
        share = 1 / (1 + math.exp(-self.rate * (self.stage.step - self.stage.steps / 2)))
        parts = [(p, group["lr"]) for group in self.param_groups for p in group["params"] if p.grad is not None]
        before = [parameter.clone() for parameter, _ in parts]
        super().step()
        for (parameter, rate), old in zip(parts, before, strict=True):
            anchor = self.state[parameter].setdefault("anchor", old.clone())
            recalled = (1 - share) * rate * self.strength * (old - anchor)
            parameter.copy_(old + share * (parameter - old) - recalled)
