"""Forget-Me-Not: several auxiliary penalties at once, on weights and on representations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from everlearn.data.blocks import BlockSource
from everlearn.methods.base import Batch, Cost, MethodConfig, Stage, register
from everlearn.methods.distillation.comparisons import over_texts
from everlearn.methods.distillation.teacher import rounding_like
from everlearn.methods.penalties.ewc import EWC
from everlearn.methods.penalties.penalty import maxima
from everlearn.methods.penalties.penalty_and_teacher import PenaltyAndTeacher
from everlearn.model.content import counted
from everlearn.model.objectives import IGNORE, Outputs


@register
class ForgetMeNot(PenaltyAndTeacher):
    """Auxiliary penalties for domain adaptation (arXiv 1911.00202), one of them or their sum.

    L = L_t + λ₁ · ½ Σ F Δ² + λ₂ · ½ Σ F⁽ᵏ⁾/max F⁽ᵏ⁾ Δ² + λ₃ · Σ Δ²
            + λ₄ · mean_s (1 − cos(h_s, h*_s)) + λ₅ · mean_s ‖h_s − h*_s‖²

    with Δ = θ − θ*, k a tensor, h and h* the last hidden states of the current model and of the one at the beginning of
    the domain for the same input, averaged over positions s of a text, then over texts. EWC, EWCn and L2 have the same
    anchor, so they are one quadratic penalty with the importance λ₁ F + λ₂ F/max F + 2 λ₃, and only this is stored. The
    pre-trained model is protected from the first domain on, with F measured on the general corpus, or on the text of
    the first domain if the recipe names none (the paper has no source data either); over several domains F is averaged.

    The weights and exact forms of the paper were not available, so the defaults of λ are starting points.
    """

    name = "forget_me_not"
    title = "Forget-Me-Not"
    summary = "penalties on weights and on representations"
    paper = "https://arxiv.org/abs/1911.00202"
    kinds = PenaltyAndTeacher.kinds
    identity: ClassVar[dict[str, Any] | None] = {
        "ewc": 0,
        "ewc_normalised": 0,
        "l2": 0,
        "cosine": 0,
        "representations": 0,
    }

    class Config(MethodConfig):
        """Options of Forget-Me-Not; each λ is tuned by itself first, then all together."""

        ewc: float = Field(500.0, ge=0, allow_inf_nan=False)
        """λ₁ of EWC; 0 disables a penalty."""
        ewc_normalised: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λ₂ of EWCn."""
        l2: float = Field(0.01, ge=0, allow_inf_nan=False)
        """λ₃ of the L2 distance of weights."""
        cosine: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λ₄ of the cosine distance of representations."""
        representations: float = Field(0.01, ge=0, allow_inf_nan=False)
        """λ₅ of the squared L2 distance of representations."""
        samples: int = Field(1000, ge=1)
        """Blocks for measuring the Fisher information."""

    config: Config

    def penalty(self) -> EWC:
        """Return λ₁, λ₂ and λ₃ as one penalty."""
        config = self.config
        active = config.ewc + config.ewc_normalised + config.l2 > 0
        options = {"strength": float(active), "samples": config.samples, "accumulate": "mean", "protect_base": True}
        return _Weights(config, options)

    @property
    def has_teacher(self) -> bool:
        return self.config.cosine + self.config.representations > 0

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return the penalty on the weights and, separately, those on representations."""
        losses = self.weights.extra_losses(stage, batch, outputs)
        if not self.has_teacher:
            return losses
        with torch.no_grad(), rounding_like(stage.model):
            before = stage.objective.hidden(self.teacher, stage.objective.inputs(batch)).float()
        now = outputs.hidden.float()
        # The last hidden state of an encoder-decoder belongs to the answers, which are padded.
        real = batch["labels"] != IGNORE if "decoder_input_ids" in batch else counted(batch)
        if self.config.cosine:
            losses["cosine"] = self.config.cosine * over_texts(1 - cosine_similarity(now, before, dim=-1), real)
        if self.config.representations:
            losses["representations"] = self.config.representations * over_texts((now - before).square().sum(-1), real)
        return losses


class _Weights(EWC):
    """EWC whose importance is λ₁ F + λ₂ F/max F + 2 λ₃."""

    name = "forget_me_not"

    def __init__(self, lambdas: ForgetMeNot.Config, options: dict[str, Any]) -> None:
        super().__init__(**options)
        self.lambdas = lambdas
        self._measures = lambdas.ewc + lambdas.ewc_normalised > 0
        self.needs = replace(self.needs, importance_pass=self._measures)

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of importance and anchor, and of the passes for F if it is used."""
        beside = super().cost(model)
        return beside if self._measures else replace(beside, measuring_bytes=0, passes_per_domain=0, passes_once=0)

    def importance_of(self, stage: Stage, source: BlockSource | None) -> dict[str, Tensor]:
        if not self._measures:
            return {
                name: torch.full_like(weight.parameter, 2 * self.lambdas.l2, dtype=torch.float32)
                for name, weight in self.held(stage).items()
            }
        importance = super().importance_of(stage, source)
        largest = maxima(importance, self.degree, dict(stage.model.named_parameters()))
        for name, value in importance.items():
            relative = value / largest[name]
            value.mul_(self.lambdas.ewc).add_(relative, alpha=self.lambdas.ewc_normalised).add_(2 * self.lambdas.l2)
        return importance
