"""Learning-rate schedules over a stream, as shares of the full rate: one function of time for each shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

TIMESCALE = 10.0
"""The constant a of the inverse-square-root cooldown."""


@dataclass(frozen=True)
class Time:
    """The position of a step in the stream.

    Attributes:
        t: number of earlier steps of the stream, without those of anneals.
        step: number of earlier steps of its domain.
        steps: number of steps of its domain.
        domain: number of earlier domains.
        warmup: number of warm-up steps.
        cooldown: number of cooldown steps.
    """

    t: int
    step: int
    steps: int
    domain: int
    warmup: int
    cooldown: int = 0


@dataclass(frozen=True)
class Levels:
    """Levels of a schedule, as shares of the full rate.

    Attributes:
        constant: the constant rate.
        minimum: the lowest rate.
        cooling: a function of :data:`COOLING`.
    """

    constant: float
    minimum: float
    cooling: str


def _cosine(low: float, x: float) -> float:
    return low + (1 - low) / 2 * (1 + math.cos(math.pi * x))


def _inverse_sqrt(low: float, x: float) -> float:
    def h(x: float) -> float:
        return 1 / math.sqrt(1 + TIMESCALE * x) - 1

    return 1 + (low - 1) * h(x) / h(1)


def _linear(low: float, x: float) -> float:
    return 1 + (low - 1) * x


COOLING: dict[str, Callable[[float, float], float]] = {
    "cosine": _cosine,
    "inverse_sqrt": _inverse_sqrt,
    "linear": _linear,
}
"""Functions from 1 at x = 0 to `low` at x = 1."""


def infinite(levels: Levels, time: Time) -> float:
    """Rise to 1, cool down to the constant rate, and stay there for all later data (arXiv 2403.08763, section 7.4)."""
    if time.t < time.warmup:
        return time.t / time.warmup
    x = (time.t - time.warmup) / time.cooldown if time.t < time.warmup + time.cooldown else 1.0
    return COOLING[levels.cooling](levels.constant, x)


def inverse_sqrt(levels: Levels, time: Time) -> float:
    """Rise to 1, then follow min + (1 − min) · √(T_w / t) (arXiv 2504.02107)."""
    warmup = max(1, time.warmup)
    if time.t < warmup:
        return time.t / warmup
    return levels.minimum + (1 - levels.minimum) * math.sqrt(warmup / time.t)


def autoregressive(levels: Levels, time: Time) -> float:
    """Rise to a peak in each domain, and fall to the minimum along a cosine (arXiv 2504.02107).

    The peak of domain i is the value after i domains of a cosine over i + 1 domains. Its distance to the minimum falls
    as about 1 / (i + 1)².
    """
    low, i = levels.minimum, time.domain
    peak = _cosine(low, i / (i + 1))
    if time.step < time.warmup:
        return peak * time.step / time.warmup
    x = (time.step - time.warmup) / max(1, time.steps - time.warmup)
    return low + (peak - low) / 2 * (1 + math.cos(math.pi * x))


def exponentially(begin: float, low: float, x: float) -> float:
    """Anneal from `begin` to `low` by equal factors."""
    return begin * (low / begin) ** x


def linearly(begin: float, low: float, x: float) -> float:
    """Anneal from `begin` to `low` by equal steps."""
    return begin + (low - begin) * x
