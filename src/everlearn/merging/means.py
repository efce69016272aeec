"""Merging methods that take a weighted mean of the checkpoints, or a point on the arc between two.

A mean has one weight for each checkpoint (or for each entry of it, with Fisher information), which sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator
from torch import Tensor

from everlearn.merging.base import MergeMethod, TensorGroup, Weighted, normalised, register_merge_method, weighted
from everlearn.model.weight_movement import Weights
from everlearn.options import Options


@register_merge_method
class Mean(MergeMethod):
    """The weighted mean θ = Σ wᵢ θᵢ / Σ wᵢ (model soups, arXiv 2203.05482).

    Over all stages of a run it is the running average of the stage checkpoints, θ̄ₙ = θ̄ₙ₋₁ + (θₙ − θ̄ₙ₋₁) / n.
    """

    name = "mean"
    title = "Mean"
    paper = "https://arxiv.org/abs/2203.05482"

    class Config(Weighted):
        weights: tuple[float, ...] | None = Field(default=None, min_length=1)
        """One weight for each checkpoint, in their order, 0 or more; divided by their sum. Equal by default."""

        @field_validator("weights")
        @classmethod
        def _not_negative(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
            if value is not None and (min(value) < 0 or not max(value)):
                raise ValueError("must be 0 or more, and one of them above 0")
            return value

    def merged(self, group: TensorGroup) -> Tensor:
        return weighted(group.models, normalised(self.config.weights, len(group.models)))


@register_merge_method
class WiSELine(MergeMethod):
    """WiSE-FT (arXiv 2109.01903, eq. 1): θ = (1 − α) θ₀ + α θ₁ for every tensor."""

    name = "wise_ft"
    title = "WiSE-FT"
    paper = "https://arxiv.org/abs/2109.01903"
    needs_base = True
    least = most = 1

    class Config(Options):
        alpha: float = Field(0.5, ge=0, le=1)
        """α, the weight of the checkpoint; ½ is the paper's recommendation if nothing can be measured."""

    def merged(self, group: TensorGroup) -> Tensor:
        return weighted([group.origin, group.models[0]], [1 - self.config.alpha, self.config.alpha])


DECAYS = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
"""Shapes of a learning-rate decay: from 1 at x = 0 to 0 at x = 1."""


@register_merge_method
class WSM(MergeMethod):
    """WSM (arXiv 2507.17634): Σ cⱼ θⱼ over the last checkpoints of a constant learning rate emulates its decay.

    θⱼ = θ₀ + u₁ + … + uⱼ, so the update uᵢ has the weight wᵢ = Σ_{j≥i} cⱼ. For a decay w₀ = 1 ≥ w₁ ≥ … ≥ w_k of the k
    updates between k + 1 checkpoints, cⱼ = wⱼ − wⱼ₊₁ and c_k = w_k. The decay ends one update after the last one: wᵢ =
    to + (1 − to) · d(i / (k + 1)); `linear` to 0 is the mean.
    """

    name = "wsm"
    title = "WSM"
    paper = "https://arxiv.org/abs/2507.17634"

    class Config(Options):
        decay: Literal["linear", "cosine", "sqrt"] = "linear"
        """The shape d: 1 − x, (1 + cos πx) / 2 or 1 − √x."""
        to: float = Field(0.0, ge=0, le=1)
        """End of the decay, as a share of the initial rate."""

    def coefficients(self, count: int) -> list[float]:
        """Return c₀ … c_k, which sum to 1."""
        decay, to = DECAYS[self.config.decay], self.config.to
        w = [to + (1 - to) * decay(i / count) for i in range(count)] + [0.0]
        return [w[j] - w[j + 1] for j in range(count)]

    def merged(self, group: TensorGroup) -> Tensor:
        self.facts["coefficients"] = self.coefficients(len(group.models))
        return weighted(group.models, self.facts["coefficients"])


@register_merge_method
class Cocktail(MergeMethod):
    """LM-Cocktail (arXiv 2311.13534): θ = α θ_T + (1 − α) Σ wᵢ θᵢ, w = softmax(−Lᵢ / T).

    Lᵢ is the mean loss of checkpoint i on a few examples of the target (`--text`). θ_T is the last checkpoint; with α =
    0 there is none, and all are weighted by their losses (`mix_models_with_data` of the released code).
    """

    name = "cocktail"
    title = "LM-Cocktail"
    paper = "https://arxiv.org/abs/2311.13534"
    reads = "losses"

    class Config(Options):
        temperature: float = Field(5.0, gt=0)
        """T; 5.0 in the released code, whose docstring says 3.0."""
        alpha: float = Field(0.0, ge=0, le=1)
        """α, the weight of the last checkpoint, the model that was tuned on the target; ½ in the paper's experiments.
        The others are weighted by their losses; 0 weights all by their losses."""

    def begin(self, models: Sequence[Weights], base: Any, losses: Sequence[float] | None) -> None:
        logits = [-loss / self.config.temperature for loss in losses or ()]
        logits = logits[:-1] if self.config.alpha else logits
        shares = normalised([math.exp(each - max(logits)) for each in logits], len(logits))
        own = [self.config.alpha] if self.config.alpha else []
        self.facts |= {"losses": list(losses or ()), "weights": [(1 - self.config.alpha) * w for w in shares] + own}

    def merged(self, group: TensorGroup) -> Tensor:
        return weighted(group.models, self.facts["weights"])


@register_merge_method
class FisherMean(MergeMethod):
    """Fisher-weighted merging (arXiv 2111.09832, eq. 4): θ = Σ wᵢ Fᵢ θᵢ / Σ wᵢ Fᵢ, entry by entry.

    Fᵢ is the Fisher diagonal of checkpoint i on text that it knows (`--text`): the empirical one, with the labels of
    the text (the paper's expectation is over labels of the model). With a base model, one checkpoint and the weights 1
    − α and α it is the Fisher-weighted form of WiSE-FT.
    """

    name = "fisher"
    title = "Fisher merging"
    paper = "https://arxiv.org/abs/2111.09832"
    reads = "fisher"

    class Config(Mean.Config):
        floor: float = Field(1e-6, gt=0)
        """Smallest value of an entry of a Fisher diagonal, as a share of the tensor's mean over all checkpoints, so
        that entries that matter to no checkpoint become their mean. The released code uses an absolute 1e-6, although
        entries are smaller in larger models."""

    def merged(self, group: TensorGroup) -> Tensor:
        weights = normalised(self.config.weights, len(group.models))
        if group.fisher is None:  # nothing that is trained
            return weighted(group.models, weights)
        mean = sum(float(fisher.double().mean()) for fisher in group.fisher) / len(group.fisher)
        if mean == 0:  # no checkpoint needs any of it
            return weighted(group.models, weights)
        kept = [fisher.clamp(min=self.config.floor * mean) for fisher in group.fisher]
        above = weighted([f * model for f, model in zip(kept, group.models, strict=True)], weights)
        return above / weighted(kept, weights)


STRAIGHT = 0.9995
"""Value of |cos Ω| above which the arc is a line, as in all released code: sin Ω would be rounding noise."""


@register_merge_method
class SLERP(MergeMethod):
    """Spherical interpolation (K. Shoemake, Animating rotation with quaternion curves, 1985), tensor by tensor:

    θ = sin((1 − t) Ω) / sin Ω · θ₁ + sin(t Ω) / sin Ω · θ₂, cos Ω = θ₁·θ₂ / (‖θ₁‖ ‖θ₂‖); a straight line if they are
    almost parallel. Checkpoints of one stream nearly always are; then it equals WiSE-FT.
    """

    name = "slerp"
    title = "SLERP"
    paper = "https://doi.org/10.1145/325334.325242"
    least = most = 2

    class Config(Options):
        t: float = Field(0.5, ge=0, le=1)
        """Position between the first checkpoint (0) and the second (1)."""

    def merged(self, group: TensorGroup) -> Tensor:
        t = self.config.t
        first, second = group.models
        lengths = float(first.norm()) * float(second.norm())
        cosine = float((first * second).sum()) / lengths if lengths else 1.0
        if abs(cosine) > STRAIGHT:
            return weighted([first, second], [1 - t, t])
        angle = math.acos(cosine)
        return weighted(
            [first, second], [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]
        )
