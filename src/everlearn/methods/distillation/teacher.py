"""A frozen model that teaches the trained one."""

from __future__ import annotations

from types import MethodType

from torch import nn


def round_alike(teacher: nn.Module, student: nn.Module) -> None:
    """Let a teacher compute in the precision that its student is trained in.

    Mixed precision lives in a forward that accelerate puts on the student itself. A teacher without it would differ
    from an equal student by rounding.

    Args:
        teacher: of the same class as the student, or at least called alike.
        student: as it is while it is trained.
    """
    if (wrapped := vars(student).get("forward")) is not None:
        vars(teacher)["forward"] = MethodType(wrapped.__func__, teacher)
