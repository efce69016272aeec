"""Mix the loss of a teacher into the loss of each label, inside the forward pass (ELLE, arXiv 2203.06311)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everlearn.errors import ModelError
from everlearn.methods.engine.attachment import Attachment
from everlearn.model.objectives import IGNORE
from everlearn.model.vocabulary_head import LOGITS_PER_CHUNK, logit_bias, logit_cap, output_head, projection

Project = Callable[[Tensor], Tensor]
"""Function from features [N, H] to logits [N, V]."""


@dataclass(frozen=True)
class Lesson:
    """The teacher's side of the KL for the next pass, and its weight r.

    Attributes:
        features: inputs of the teacher's vocabulary projection, [N, H].
        project: the projection.
        labels: labels of the first N rows of the student at the head, [N].
        weight: r.
        temperature: T.
    """

    features: Tensor
    project: Project
    labels: Tensor
    weight: float
    temperature: float


class Recovery(Attachment):
    """Hooks the vocabulary projection, where the objective computes a loss for each label.

    The mixed loss is averaged with all the others over the accumulated batch, so its weight does not depend on how
    batches are divided or distributed, and (1 − r) applies to the objective's own loss.

    Attributes:
        lesson: for the next pass; without one nothing is changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lesson: Lesson | None = None
        self.cap: float | None = None
        self.bias: Tensor | None = None

    def place(self, model: nn.Module) -> None:
        head = output_head(model)
        if head is None:
            raise ModelError(f"'{type(model).__name__}' has no vocabulary head, so it cannot learn from a teacher.")
        # Read here, because the objective hides both during a pass.
        self.cap, self.bias = logit_cap(model), logit_bias(model)
        head.register_forward_hook(self._mix)

    def _mix(self, head: nn.Module, args: tuple[Tensor, ...], losses: Tensor) -> Tensor | None:
        """Return (1 − r) · loss + r · T² · KL for each label; other rows (views of other methods) are unchanged."""
        lesson, self.lesson = self.lesson, None
        if lesson is None:
            return None
        count = len(lesson.labels)
        project = projection(head, self.cap, self.bias)
        divergence = kl_per_row(args[0][:count], project, lesson.features, lesson.project, lesson.temperature)
        divergence = divergence.masked_fill(lesson.labels == IGNORE, 0)
        mixed = (1 - lesson.weight) * losses[:count] + lesson.weight * divergence
        return torch.cat([mixed, losses[count:]]) if len(losses) > count else mixed


def kl_per_row(
    student: Tensor, project: Project, teacher: Tensor, teach: Project, temperature: float, rows: int | None = None
) -> Tensor:
    """Return T² · KL(softmax(teacher / T) ‖ softmax(student / T)) for each row, [N] float32.

    Args:
        student: features of the student, [N, H].
        project: its vocabulary projection.
        teacher: features of the teacher, [N, H'].
        teach: its vocabulary projection, to the same tokens.
        temperature: T.
        rows: number of rows projected at once, recomputed in the backward pass if there are more; None for the chunk
            size of the objective.
    """

    def part(student: Tensor, teacher: Tensor) -> Tensor:
        new = F.log_softmax(project(student).float() / temperature, -1)
        with torch.no_grad():
            old = F.log_softmax(teach(teacher).float() / temperature, -1)
        return temperature**2 * F.kl_div(new, old, reduction="none", log_target=True).sum(-1)

    if rows is None:
        with torch.no_grad():
            rows = max(1, LOGITS_PER_CHUNK // project(student[:1]).shape[-1])
    if len(student) <= rows:
        return part(student, teacher)
    pairs = zip(student.split(rows), teacher.split(rows), strict=True)
    return torch.cat([checkpoint(part, *pair, use_reentrant=False) for pair in pairs])
