"""L2: keep every weight close to its earlier value, with equal importance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import BlockSource
from everlearn.methods.base import Cost, Stage, Variant, register
from everlearn.methods.penalties.penalty import MeasuredPenalty
from everlearn.methods.state import Tensors


@register
class L2(MeasuredPenalty):
    """L2 penalty towards earlier weights, the baseline of arXiv 1612.00796: L = L_t + λ/2 · Σ_i (θ_i − θ*_i)².

    The importance is 1 for every weight: one number per tensor is stored, and one anchor. With the mean over domains
    (the default) the effective λ does not depend on their number; with separate anchors the weights are pulled to their
    mean.
    """

    name = "l2"
    title = "L2"
    summary = "penalises moving any weight"
    paper = "https://arxiv.org/abs/1612.00796"
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}
    _importance = Tensors("ones/", like="_anchor")
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            name="l2_sp",
            title="L2-SP",
            description="Towards the base model's weights for the whole stream, except biases and norms, as in the "
            "authors' code. Their second term decays the weights of a new head, of which a stage has none.",
            options={"anchor": "base", "exclude": ("vectors",)},
            paper="https://arxiv.org/abs/1802.01483",
        ),
    )

    class Config(MeasuredPenalty.Config):
        """A penalty in which every weight has the importance 1."""

        strength: float = Field(0.1, ge=0, allow_inf_nan=False)
        """λ; 0 is plain training. The authors of L2-SP use 0.1 (their α) for convolutional networks with SGD."""
        accumulate: Literal["sum", "mean"] = "mean"
        """Importance over several domains: `mean`, or `sum`, which grows with their number."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            yield from super().without_effect()
            yield ("normalise",), "where the importance of every weight is 1"

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost: one copy of the weights, and a number per tensor."""
        if not self.config.strength:
            return Cost()
        trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
        held = 4 * (sum(trained) + len(trained))
        return replace(super().cost(model), memory_bytes=held, measuring_bytes=0, disk_bytes=held)

    def importance_of(self, stage: Stage, source: BlockSource | None) -> dict[str, Tensor]:
        return {name: torch.ones((), device=weight.parameter.device) for name, weight in self.held(stage).items()}
