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

from everlearn.methods.distillation.comparisons import Distance
from everlearn.methods.engine.anchor import Anchor
from everlearn.methods.stage import Batch, Stage
from everlearn.model.head import logits_of
from everlearn.model.objectives import IGNORE, View


def teacher_of(stage: Stage, anchor: Anchor = "last") -> nn.Module:
    """A frozen copy, in evaluation mode, of what answers when the domain begins, or of the pre-trained model."""
    if anchor == "last":
        answering = stage.answering
        own = copy.deepcopy(answering) if answering is stage.model else answering
        return own.requires_grad_(False).eval()
    return stage.checkpoints[0].to(next(stage.model.parameters()).device).requires_grad_(False)


def cost_of_teacher(model: nn.Module) -> int:
    """Bytes of a copy of a model."""
    return sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])


def answers_beside(stage: Stage, teacher: nn.Module, batch: Batch, temperature: float, of: Distance) -> View:
    """The batch's own rows once more, with a teacher's answers to the very same input in the place of labels.

    Args:
        stage: that is learnt.
        teacher: to the same words.
        batch: says where the labels are.
        temperature: that the logits of both are divided by.
        of: what is made of the two.
    """
    with torch.no_grad(), rounding_like(stage.model):
        features = stage.objective.label_features(teacher, batch)

    def answers(logits: Tensor, labels: Tensor, at: slice) -> Tensor:
        with torch.no_grad():
            old = F.log_softmax(logits_of(teacher, features[at]) / temperature, -1)
        return of(old, F.log_softmax(logits / temperature, -1)).masked_fill(labels == IGNORE, 0)

    return View(None, labels=batch["labels"], positions=batch.get("positions"), loss=answers)


def rounding_like(student: nn.Module) -> AbstractContextManager[Any]:
    """Inside, a teacher computes in the precision that its student is trained in.

    Accelerate's mixed precision lives in a forward that it puts on the student itself (and keeps the one before it as
    ``_original_forward``). A teacher without it would differ from an equal student by rounding. That forward cannot be
    borrowed: a student with PEFT adapters is of another class than a teacher without them.

    Args:
        student: as it is while it is trained.
    """
    if "_original_forward" not in vars(student):
        return contextlib.nullcontext()
    mixed: AbstractContextManager[Any] = get_mixed_precision_context_manager(native_amp=True)
    return mixed
