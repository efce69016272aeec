"""Judge a difference: forgotten, learnt, or not distinguishable."""

from __future__ import annotations

from typing import Literal

from everlearn.evaluation.estimate import Estimate

VANISHING = 0.0005
"""Bits per byte that three decimals do not show; differences between number formats and kernels are smaller."""
Word = Literal["forgot", "lost within tolerance", "learnt", "no difference", "unknown"]


def judge(worse: Estimate, tolerated: float = 0.0) -> Word:
    """Return the verdict on a difference.

    Args:
        worse: how much worse the later model is, with the interval of a paired bootstrap.
        tolerated: a loss is within tolerance if its interval lies below this.
    """
    if worse.value is None or worse.sign is None:
        return "unknown"
    if abs(worse.value) < VANISHING:
        return "no difference"
    if worse.sign > 0:
        return "lost within tolerance" if worse.above(tolerated) is False else "forgot"
    return "learnt" if worse.sign < 0 else "no difference"
