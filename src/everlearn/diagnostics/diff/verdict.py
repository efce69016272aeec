"""Whether a difference is one: what was forgotten, what was learnt, and what a text cannot tell apart."""

from __future__ import annotations

from typing import Literal

from everlearn.evaluation.estimate import Estimate

VANISHING = 0.0005
"""Bits per byte that pages with three decimals do not show: number formats and kernels differ by less."""
Word = Literal["forgot", "lost within tolerance", "learnt", "no difference", "unknown"]


def judge(worse: Estimate, tolerated: float = 0.0) -> Word:
    """Return what a difference means.

    Args:
        worse: how much worse the later model is, with the interval of a paired bootstrap.
        tolerated: a loss whose whole interval is below this is within tolerance.
    """
    if worse.value is None or worse.sign is None:
        return "unknown"
    if abs(worse.value) < VANISHING:
        return "no difference"
    if worse.sign > 0:
        return "lost within tolerance" if worse.above(tolerated) is False else "forgot"
    return "learnt" if worse.sign < 0 else "no difference"
