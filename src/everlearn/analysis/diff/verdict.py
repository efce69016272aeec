"""Whether a difference is one: what was forgotten, what was learnt, and what a text cannot tell apart."""

from __future__ import annotations

from typing import Literal

from everlearn.evaluation.estimate import Estimate

TOLERATED = 0.02
"""Bits per byte that a text may lose before it counts as forgotten, unless another bound is given."""
Word = Literal["forgot", "lost within tolerance", "learnt", "no difference", "unknown"]


def judge(worse: Estimate, tolerated: float = 0.0) -> Word:
    """Return what a difference means.

    Args:
        worse: how much worse the later model is, with the interval of a paired bootstrap.
        tolerated: how much worse it may be and count as within the tolerance.
    """
    if worse.value is None or worse.sign is None:
        return "unknown"
    if worse.sign > 0:
        return "forgot" if worse.value > tolerated else "lost within tolerance"
    return "learnt" if worse.sign < 0 else "no difference"
