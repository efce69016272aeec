"""A frozen model that teaches the trained one."""

from __future__ import annotations

import contextlib
import copy
from contextlib import AbstractContextManager
from typing import Any

from accelerate.utils import get_mixed_precision_context_manager
from torch import nn

from everlearn.methods.engine.anchor import Anchor
from everlearn.methods.stage import Stage


def teacher_of(stage: Stage, anchor: Anchor = "last") -> nn.Module:
    """A frozen copy, in evaluation mode, of the model that the domain begins with, or of the pre-trained one."""
    if anchor == "last":
        return copy.deepcopy(stage.model).requires_grad_(False).eval()
    return stage.checkpoints[0].to(next(stage.model.parameters()).device).requires_grad_(False)


def cost_of_teacher(model: nn.Module) -> int:
    """Bytes of a copy of a model."""
    return sum(tensor.numel() * tensor.element_size() for tensor in [*model.parameters(), *model.buffers()])


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
