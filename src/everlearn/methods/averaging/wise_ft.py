"""WiSE-FT: interpolate between the weights before and after a domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from everlearn.errors import MethodError
from everlearn.methods.base import Method, MethodConfig, Needs, Setting, Stage, Variant, register
from everlearn.ranges import Between, OneOf, ranges


@register
class WiSEFT(Method):
    """WiSE-FT (arXiv 2109.01903, eq. 1) after every domain: θₙ = (1 − α) θ_old + α θ̂ₙ.

    θ̂ₙ are the weights at the end of training on the domain and θ_old those at its beginning, θₙ₋₁, so that the next
    domain continues from the merged weights. With `anneal` of `stream_schedule` it continues from the weights before
    the anneal, and the merged weights are only the released model; θ_old is then the previously released one.

    With α = 1/n the weights are the running average θₙ = θₙ₋₁ + (θ̂ₙ − θₙ₋₁) / n over the ends of the stages.
    """

    name = "wise_ft"
    title = "WiSE-FT"
    summary = "interpolates between the weights before and after a domain"
    paper = "https://arxiv.org/abs/2109.01903"
    needs = Needs(peft=False)
    identity: ClassVar[dict[str, Any] | None] = {"alpha": 1}
    variants = (
        Variant(
            "model_average",
            "Running average",
            "The running average of the models at the ends of the stages, with weight 1/n each.",
            {"alpha": "1/n"},
            "https://arxiv.org/abs/2203.05482",
        ),
    )

    class Config(MethodConfig):
        alpha: Annotated[float, Field(ge=0, le=1)] | Literal["1/n"] = 0.5
        """α, the weight of the trained model; 1 is plain training, ½ is the paper's recommendation if nothing can be
        measured. `1/n`: one over the number of domains learnt, including this one."""
        anchor: Literal["before", "base"] = "before"
        """θ_old: the weights at the beginning of the domain, or the base model (as in the paper, which has no
        stream)."""

    search = ranges(alpha=Between(0.2, 0.9), anchor=OneOf(("before", "base")))
    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self.needs = replace(type(self).needs, base_model=self.config.anchor == "base" and self.config.alpha != 1)

    def check(self, setting: Setting) -> None:
        """Require that each domain starts from the last checkpoint, which is read as θ_old."""
        super().check(setting)
        for other in setting.methods:
            if other.goes_back and self.config.anchor == "before" and self.config.alpha != 1:
                raise MethodError(
                    f"Method '{self.label}' interpolates between the last model and the trained one, but method "
                    f"'{other.label}' starts a domain from another model. Set `anchor: base`, or remove one of them "
                    "from `method`."
                )

    def final_weights(self, stage: Stage) -> Mapping[str, Tensor]:
        """Return the interpolated weights; parameters that the earlier model does not have keep their values."""
        alpha = 1 / stage.index if self.config.alpha == "1/n" else self.config.alpha
        if alpha == 1:
            return {}
        old = dict(stage.checkpoints[0 if self.config.anchor == "base" else -1].named_parameters())
        now = dict(stage.model.named_parameters())
        shared = [name for name in old if name in now and now[name].shape == old[name].shape]
        return {name: old[name].detach().lerp(now[name].detach().cpu(), alpha) for name in shared}
