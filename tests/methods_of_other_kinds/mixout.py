"""Mixout: weights that are, at random, those of the base model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Cost, Method, MethodConfig, Needs, Stage, Transform, register


@register
class Mixout(Method):
    """Mixout (arXiv 1909.11299, eq. 5): the pass reads ((1 − M) ⊙ θ + M ⊙ u − p u) / (1 − p), M ~ Bernoulli(p).

    u is the base model; the expectation is θ. The weights of linear layers are mixed.
    """

    name = "mixout"
    title = "Mixout"
    paper = "https://arxiv.org/abs/1909.11299"
    needs = Needs(peft=False)
    identity: ClassVar[dict[str, Any] | None] = {"probability": 0}

    class Config(MethodConfig):
        """Options of Mixout."""

        probability: float = Field(0.5, ge=0, lt=1)
        """p; 0 is plain training."""

    def cost(self, model: nn.Module) -> Cost:
        """u, and what a pass reads."""
        mixed = sum(p.numel() * p.element_size() for name, p in model.named_parameters() if _is_mixed(name, p))
        return Cost(memory_bytes=2 * mixed if self.config.probability else 0)

    def transforms(self, stage: Stage) -> Mapping[str, Transform]:
        """The mixture of each matrix."""
        if not self.config.probability:
            return {}
        device = next(stage.model.parameters()).device
        base = dict(stage.checkpoints[0].to(device).named_parameters())
        return {
            name: self._mixing(base[name].detach())
            for name, parameter in stage.model.named_parameters()
            if name in base and _is_mixed(name, parameter)
        }

    def _mixing(self, anchor: Tensor) -> Transform:
        p = self.config.probability

        def mix(weight: Tensor) -> Tensor:
            other = anchor.to(weight.dtype)
            return (torch.where(torch.rand_like(weight) < p, other, weight) - p * other) / (1 - p)

        return mix


def _is_mixed(name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() == 2 and parameter.requires_grad and "everlearn_" not in name
