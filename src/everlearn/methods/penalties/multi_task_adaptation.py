"""Adaptation as two balanced tasks: learn the new domain, and retain what the model knew."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.magnitude import of_all_processes
from everlearn.methods.base import Batch, Cost, MethodConfig, Stage, View, register
from everlearn.methods.distillation.comparisons import forward_kl, softened
from everlearn.methods.distillation.teacher import answers_beside
from everlearn.methods.penalties.ewc import EWC
from everlearn.methods.penalties.penalty_and_teacher import PenaltyAndTeacher
from everlearn.methods.state import Fact
from everlearn.model.objectives import Outputs, row_means


@register
class MultiTaskAdaptation(PenaltyAndTeacher):
    """Adaptation as multi-task learning, after the idea of arXiv 1904.08039 (end-to-end speech recognition).

    One task learns the new domain, the other keeps parameters close to the original ones and penalises forgetting, and
    a mechanism balances the two. The formulas of the paper were not available, so these are **our reading**:

        L = L_new + r · L_retain,   L_retain = λ₁ · ½ Σ F (θ − θ*)² + λ₂ · T² KL(p*(·; T) ‖ p(·; T))

    with p and p* the predictions of the current model and of the one at the beginning of the domain at the labelled
    positions (averaged over those of a text, then over texts), and r = w_r / w_n. Only the ratio of the two weights
    matters: a common factor acts like a learning rate. `fixed`: w_r = `retain`, w_n = 1 − `retain`. `uncertainty`
    (arXiv 1705.07115): w = e^(−s) for each task, with s ← s − η (1 − e^(−s) L), the gradient of e^(−s) L + s, so that w
    converges to 1 / L. L_retain is 0 as long as nothing has moved, so its weight alone would grow without bound and
    stop all learning; r is at most `largest`.
    """

    name = "multi_task_adaptation"
    title = "Multi-task adaptation"
    summary = "balances learning against drift and distillation"
    paper = "https://arxiv.org/abs/1904.08039"
    kinds = PenaltyAndTeacher.kinds
    identity: ClassVar[dict[str, Any] | None] = {"drift": 0, "distillation": 0}

    class Config(MethodConfig):
        drift: float = Field(500.0, ge=0, allow_inf_nan=False)
        """λ₁ of the drift of the weights (EWC's penalty; the base model is protected too)."""
        distillation: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λ₂ of the distillation from the model at the beginning of the domain."""
        temperature: float = Field(1.0, gt=0, allow_inf_nan=False)
        """T."""
        balance: Literal["uncertainty", "fixed"] = "uncertainty"
        """How the weights of the two tasks are set."""
        retain: float = Field(0.5, ge=0, lt=1)
        """w_r of the fixed balance; 0.1, 0.3, 0.5 and 0.7 are a first grid."""
        rate: float = Field(0.01, gt=0, allow_inf_nan=False)
        """η of the learnt balance."""
        largest: float = Field(10.0, gt=0, allow_inf_nan=False)
        """Largest r of the learnt balance."""
        samples: int = Field(1000, ge=1)
        """Blocks for measuring the Fisher information."""

        def without_effect(self) -> Iterator[tuple[Sequence[str], str]]:
            learnt = self.balance == "uncertainty"
            yield ("retain",) if learnt else ("rate", "largest"), f"with `balance: {self.balance}`"

    config: Config
    _s = Fact("s", lambda: [0.0, 0.0], of=Annotated[list[float], Field(min_length=2, max_length=2)])

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._seen: Tensor | None = None

    def cost(self, model: nn.Module) -> Cost:
        """Return the cost of :class:`PenaltyAndTeacher`, plus the four numbers that the balance is learnt from."""
        beside = super().cost(model)
        active = self.config.drift + self.config.distillation > 0
        return replace(beside, memory_bytes=beside.memory_bytes + 16) if active else beside

    def penalty(self) -> EWC:
        """Return the penalty of EWC times λ₁."""
        return EWC(strength=self.config.drift, samples=self.config.samples, protect_base=True)

    @property
    def has_teacher(self) -> bool:
        return self.config.distillation > 0

    @property
    def ratio(self) -> float:
        """The ratio r."""
        if self.config.balance == "fixed":
            return self.config.retain / (1 - self.config.retain)
        return min(math.exp(self._s[0] - self._s[1]), self.config.largest)

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return the rows of the batch with the divergence from the teacher in place of cross-entropy."""
        if not self.has_teacher:
            return []
        temperature = self.config.temperature
        return [answers_beside(stage, self.teacher, batch, temperature, softened(forward_kl, temperature))]

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return r times the drift and r times the distillation."""
        weights = self.weights.extra_losses(stage, batch, outputs)
        losses = {"drift": weights["penalty"]} if weights else {}
        if self.has_teacher and (divergence := outputs.view_losses[0]) is not None:
            losses["distillation"] = self.config.distillation * row_means(divergence, batch["labels"])
        if losses and self.config.balance == "uncertainty":
            if not outputs.losses.numel():
                raise MethodError(
                    f"Method '{self.label}', option 'balance': 'uncertainty' needs the loss of each batch, which is "
                    "not known with an external trainer. Set `balance: fixed`."
                )
            retained = torch.stack([value.detach() for value in losses.values()]).sum()
            new = torch.stack([outputs.losses.detach().sum(), outputs.items, retained, torch.ones_like(retained)])
            self._seen = new if self._seen is None else self._seen + new
        return {name: self.ratio * value for name, value in losses.items()}

    def after_step(self, stage: Stage) -> None:
        """Update the learnt balance by the losses of all micro-batches and processes."""
        if self._seen is None:
            return
        new, labels, retained, count = of_all_processes({"seen": self._seen})["seen"].tolist()
        self._seen = None
        for task, loss in enumerate((new / max(labels, 1), retained / count)):
            self._s[task] -= self.config.rate * (1 - math.exp(-self._s[task]) * loss)
        self._s[1] = max(self._s[1], self._s[0] - math.log(self.config.largest))
