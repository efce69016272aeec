"""A frozen model that teaches the trained one."""

from __future__ import annotations

import contextlib
import copy
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from accelerate.utils import get_mixed_precision_context_manager
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.distillation.comparisons import Distance
from everlearn.methods.engine.anchor import Anchor
from everlearn.methods.stage import Batch, Stage
from everlearn.model.objectives import IGNORE, View
from everlearn.model.vocabulary_head import LogitLoss, logits_of


class WithTeacher:
    """A method with a frozen model, which exists while a domain is learnt."""

    label: str
    _teacher: nn.Module | None = None

    @property
    def teacher(self) -> nn.Module:
        """The frozen model.

        Raises:
            MethodError: no domain has begun.
        """
        if self._teacher is None:
            raise MethodError(f"Method '{self.label}' has no teacher: run `begin_domain` before the first step.")
        return self._teacher


def teacher_of(stage: Stage, anchor: Anchor = "last") -> nn.Module:
    """Return a frozen copy, in evaluation mode, of the model that the domain starts from, or the pre-trained model."""
    if anchor == "last":
        answering = stage.answering
        own = copy.deepcopy(answering) if answering is stage.model else answering
        return own.requires_grad_(False).eval()
    return stage.checkpoints[0].to(next(stage.model.parameters()).device).requires_grad_(False)


def cost_of_teacher(model: nn.Module) -> int:
    """Return the bytes of a copy of a model."""
    return sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])


def answers_beside(stage: Stage, teacher: nn.Module, batch: Batch, temperature: float, of: Distance) -> View:
    """Return a view of the batch's own rows with a loss against the predictions of a teacher on the same input.

    See :func:`distance_from`; the batch locates the labels.
    """
    with torch.no_grad(), rounding_like(stage.model):
        features = stage.objective.label_features(teacher, batch)
    return View(None, None, batch["labels"], batch.get("positions"), distance_from(teacher, features, temperature, of))


def distance_from(teacher: nn.Module, features: Tensor, temperature: float, of: Distance) -> LogitLoss:
    """Return the loss of a view: the distance of its predictions from those of a teacher.

    Args:
        teacher: a model with the same vocabulary.
        features: what its head reads for each label of the view, [b · K, H].
        temperature: the divisor of the logits of both.
        of: distance between the log-probabilities of teacher and student.
    """

    def answers(logits: Tensor, labels: Tensor, at: slice) -> Tensor:
        with torch.no_grad():
            old = F.log_softmax(logits_of(teacher, features[at]) / temperature, -1)
        return of(old, F.log_softmax(logits / temperature, -1)).masked_fill(labels == IGNORE, 0)

    return answers


def rounding_like(student: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which a teacher computes in the precision of its student.

    Accelerate implements mixed precision by replacing the forward of the student (the earlier one is stored as
    ``_original_forward``). A teacher without it would differ from an equal student by rounding. Its forward cannot be
    reused, because a student with PEFT adapters is of another class than a teacher without them.
    """
    if "_original_forward" not in vars(student):
        return contextlib.nullcontext()
    mixed: AbstractContextManager[Any] = get_mixed_precision_context_manager(native_amp=True)
    return mixed
