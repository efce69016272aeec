"""MAS: the importance of a weight is the sensitivity of the model's output to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from everlearn.data.blocks import BlockSource
from everlearn.importance import gradient_moment
from everlearn.methods.base import Cost, MethodConfig, Needs, Stage, register
from everlearn.methods.penalties.penalty import MeasuredPenalty
from everlearn.model.training_mode import evaluating


@register
class MAS(MeasuredPenalty):
    """Memory aware synapses (arXiv 1711.09601, eq. 2 to 4): L = L_t + λ/2 · Σ_i Ω_i (θ_i − θ*_i)².

    Ω_i = (1/N) Σ_n |∂ ‖F(x_n)‖² / ∂θ_i| needs no labels, only texts. The paper does not define F(x) for a language
    model. Here it is the logits, averaged over the positions at which the objective has labels. The last hidden state
    would be cheaper, but most models normalise it, so that its norm is almost constant.
    """

    name = "mas"
    title = "MAS"
    summary = "penalises moving weights that the output depends on"
    paper = "https://arxiv.org/abs/1711.09601"
    needs = Needs(importance_pass=True, memory="statistics")
    identity: ClassVar[dict[str, Any] | None] = {"strength": 0}
    importance_samples = True

    class Config(MeasuredPenalty.Config):
        """How many blocks importance is measured on, and how strongly it holds the weights."""

        strength: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λ; 0 is plain training. The paper uses 1 for image classifiers; Ω grows with vocabulary and logits."""
        samples: int = Field(1000, ge=1)
        """Blocks for measuring Ω of a domain."""

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, importance_pass=self.config.strength > 0)

    def cost(self, model: nn.Module) -> Cost:
        beside = super().cost(model)
        return self.with_passes(beside, self.config.samples) if self.config.strength else beside

    def importance_of(self, stage: Stage, source: BlockSource | None) -> dict[str, Tensor]:
        """Return Ω, on `samples` blocks without dropout."""

        def size(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
            """Return ‖logits‖², averaged over the labels of each row, [B]."""
            return stage.objective.per_sample_loss(model, batch, lambda logits, *_: logits.square().sum(-1))

        batches = stage.batches(self.config.samples, source)
        with evaluating(stage.model):
            return gradient_moment(stage.model, batches, size, list(self.held(stage)), power=1, called="Importance")
