"""A frozen model that teaches the trained one."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from accelerate.utils import get_mixed_precision_context_manager
from torch import nn


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
