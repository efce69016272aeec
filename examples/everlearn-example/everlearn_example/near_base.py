"""Stay near the base model's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Batch, Cost, Method, MethodConfig, Needs, Stage, register
from everlearn.methods.state import Tensors

if TYPE_CHECKING:
    from everlearn.model.objectives import Outputs


@register
class NearBase(Method):
    """L2-SP (arXiv 1802.01483, eq. 2): L = L_t + α/2 · Σ_i (θ_i − θ⁰_i)², with θ⁰ the base model's weights."""

    name = "near_base"
    title = "Near base"
    summary = "penalises moving away from the base model"
    paper = "https://arxiv.org/abs/1802.01483"
    kinds = ("prior-focused",)
    needs = Needs(peft=False)
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}

    class Config(MethodConfig):
        strength: float = Field(0.01, ge=0, allow_inf_nan=False)
        """α; 0 is plain training."""

    config: Config
    _anchor = Tensors("anchor/")
    """The weights of the base model: {} at first, saved with each stage as "anchor/<name>"."""

    def cost(self, model: nn.Module) -> Cost:
        """One float32 copy of the trained parameters."""
        if not self.config.strength:
            return Cost()
        numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        return Cost(memory_bytes=4 * numbers, disk_bytes=4 * numbers)

    def begin_domain(self, stage: Stage) -> None:
        """Take the anchor, once in a stream; later it comes from memory, which is loaded to the CPU."""
        parameters = dict(stage.model.named_parameters())
        if self.config.strength and not self._anchor:
            self._anchor = {name: value.detach().clone() for name, value in parameters.items() if value.requires_grad}
        self._anchor = {name: value.to(parameters[name].device) for name, value in self._anchor.items()}

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """α/2 · Σ (θ − θ⁰)²."""
        parameters = dict(stage.model.named_parameters())
        terms = [(parameters[name] - value).square().sum() for name, value in self._anchor.items()]
        return {"penalty": self.config.strength / 2 * torch.stack(terms).sum()} if terms else {}
