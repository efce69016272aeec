"""LwF: keep predictions on new text close to those of the model that the domain started from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from everlearn.methods.base import Batch, Cost, MethodConfig, Needs, Stage, View, register
from everlearn.methods.distillation.comparisons import cross_entropy
from everlearn.methods.distillation.teacher import WithTeacher, answers_beside, cost_of_teacher, teacher_of
from everlearn.methods.engine.anchor import Anchored
from everlearn.model.objectives import Outputs, row_means
from everlearn.ranges import Around, ranges


@register
class LwF(WithTeacher):
    """Learning without forgetting (arXiv 1606.09282, eq. 2 and 3): L = L_new + λₒ · H(p′_old, p′_new).

    H = −Σ_words p′_old log p′_new, p′ = softmax(logits / T): the predictions of the old model on the *new* text, at the
    labels (masked positions, next tokens, the tokens of an answer), summed over the vocabulary, averaged over the
    labels of a row and over rows. There is no factor T², as in the paper: the gradient carries 1/T. H is the divergence
    of the two plus a constant, the entropy of the old model, so it does not start at 0.

    The paper records the predictions once for each image, without augmentation; here they are computed in each step
    from the training input, and held as features instead of logits. The warm-up of a new head is for classifiers only.
    """

    name = "lwf"
    title = "LwF"
    summary = "keeps the old model's predictions on new text"
    paper = "https://arxiv.org/abs/1606.09282"
    needs = Needs(predictions=True)
    identity: ClassVar[dict[str, Any] | None] = {"weight": 0}

    class Config(Anchored):
        """Weight and temperature of the comparison with the old model's predictions."""

        weight: float = Field(1.0, ge=0, allow_inf_nan=False)
        """λₒ; the paper chooses from 0.3, 1, 3, 10. 0 is plain training, without an old model."""
        temperature: float = Field(2.0, gt=0, allow_inf_nan=False)
        """T; values above 1 give small probabilities more weight."""

    search = ranges(weight=Around(10))
    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        active = self.config.weight > 0
        self.needs = replace(type(self).needs, base_model=active and self.config.anchor == "base")

    def cost(self, model: nn.Module) -> Cost:
        return cost_of_teacher(model) if self.config.weight else Cost()

    def begin_domain(self, stage: Stage) -> None:
        if self.config.weight:
            self._teacher = teacher_of(stage, self.config.anchor)

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """Return the rows of the batch with a loss against the predictions of the old model."""
        if not self.config.weight:
            return []
        return [answers_beside(stage, self.teacher, batch, self.config.temperature, cross_entropy)]

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """Return λₒ · H."""
        losses = outputs.view_losses[0] if outputs.view_losses else None
        return {} if losses is None else {"answers": self.config.weight * row_means(losses, batch["labels"])}
