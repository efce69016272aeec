"""KD: representations that stay near those of the model that the domain started from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance import proxy_kl_per_sample
from everlearn.importance.proxy import Softmax
from everlearn.methods.base import FORWARD, Batch, Cost, Method, MethodConfig, Stage, Variant, View, register
from everlearn.methods.distillation.teacher import cost_of_teacher, rounding_like, teacher_of
from everlearn.model.anatomy import kind_of
from everlearn.model.objectives import IGNORE

if TYPE_CHECKING:
    from everlearn.model.objectives import Outputs


@register
class KD(Method):
    """Knowledge distillation (arXiv 1503.02531) as a baseline of continual pre-training (arXiv 2302.03241, §4.1).

    L = L_t + w · (1/N) Σ_n KL(p_n ‖ q_n), with p the student's and q the teacher's last hidden state on unmasked text,
    each made a distribution by a softmax over the features; summed over features, mean over the tokens of a text. The
    teacher is the model after the previous domain, the base model in the first one. Like the released code, the KL is
    of the student from the teacher.

    The teacher is a frozen copy made when a domain begins. It is no part of the trained model, of its checkpoints or
    of the memory: a resumed domain begins with the same weights. Under DDP and FSDP2 every process holds a whole one.
    """

    name = "kd"
    title = "KD"
    paper = "https://arxiv.org/abs/1503.02531"
    identity: ClassVar[dict[str, Any] | None] = {"weight": 0}
    variants: ClassVar[tuple[Variant, ...]] = (
        Variant(
            name="kd_released",
            title="KD (released)",
            description="As the DAS authors' code has it: softmax over the positions of a text, teacher with dropout.",
            options={"softmax": "sequence", "teacher_dropout": True},
            paper="https://arxiv.org/abs/2302.03241",
        ),
    )

    class Config(MethodConfig):
        """Options of KD."""

        weight: float = Field(1.0, ge=0, allow_inf_nan=False)
        """w; 0 is plain training, without a teacher."""
        softmax: Softmax = "features"
        """What a distribution is over: the features of a token (mean over tokens), or the tokens of a text, one
        distribution a feature (summed over features: the DAS authors' code)."""
        teacher_dropout: bool = False
        """Run the teacher with dropout too, as the DAS authors' code does."""

    config: Config

    def __init__(self, config: MethodConfig | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._teacher: nn.Module | None = None

    def cost(self, model: nn.Module) -> Cost:
        """A copy of the model and its forward pass; for a masked model the student's pass over unmasked text too."""
        if not self.config.weight:
            return Cost()
        return Cost(
            memory_bytes=cost_of_teacher(model),
            passes_per_step=FORWARD + (kind_of(model) == "encoder"),
        )

    def begin_domain(self, stage: Stage) -> None:
        """The teacher: the model as the domain finds it."""
        if self.config.weight:
            self._teacher = teacher_of(stage).train(self.config.teacher_dropout)

    def views(self, stage: Stage, batch: Batch) -> list[View]:
        """The unmasked text, unless the batch is unmasked already."""
        return [View(_unmasked(stage, batch))] if self.config.weight and "plain_ids" in batch else []

    def extra_losses(self, stage: Stage, batch: Batch, outputs: Outputs) -> dict[str, Tensor]:
        """w times the mean KL over the texts of the batch."""
        if not self.config.weight:
            return {}
        if self._teacher is None:
            raise MethodError(f"Method '{self.label}' has no teacher: run `begin_domain` before the first step.")
        student = outputs.views[0] if outputs.views else outputs.hidden
        with torch.no_grad(), rounding_like(stage.model):
            teacher = stage.objective.hidden(self._teacher, _unmasked(stage, batch))
        # An encoder-decoder's last hidden state is of the answers, which are padded.
        mask = batch["labels"] != IGNORE if "decoder_input_ids" in batch else None
        divergence = proxy_kl_per_sample(student, teacher, mask, self.config.softmax).mean()
        if self.config.softmax == "sequence":
            divergence = divergence * student.shape[-1]
        return {"divergence": self.config.weight * divergence}

    def end_domain(self, stage: Stage) -> None:
        """The teacher has taught; the next domain has another."""
        self._teacher = None


def _unmasked(stage: Stage, batch: Batch) -> Batch:
    inputs = stage.objective.inputs(batch)
    return inputs | {"input_ids": batch["plain_ids"]} if "plain_ids" in batch else inputs
