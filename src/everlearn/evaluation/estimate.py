"""Represent a number with its confidence interval, and compute with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


def number(value: Any) -> float | None:
    """Return a finite number as a float, and None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:  # an integer in JSON can be too large for a float
        return None
    return converted if math.isfinite(converted) else None


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % confidence interval; every part may be absent (None)."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def read(cls, raw: Any) -> Estimate:
        """Read ``{"value", "low", "high"}``, a bare number or None; values that are not finite are absent."""
        if isinstance(raw, Mapping):
            return cls(number(raw.get("value")), number(raw.get("low")), number(raw.get("high")))
        return cls(number(raw))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return both ends, or None if an end or the value is absent."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return self.low, self.high

    @property
    def sign(self) -> int | None:
        """Return +1 or -1 if the interval lies on that side of zero, 0 if it contains zero, None if it is unknown."""
        if self.interval is None:
            return None
        low, high = self.interval
        return 1 if low > 0 else -1 if high < 0 else 0

    def above(self, bound: float) -> bool | None:
        """Return whether the interval lies above a bound: True above, False below, None if it contains the bound.

        None is also returned without an interval. An interval that begins at the bound does not lie above it; one that
        ends there lies below it.
        """
        if self.interval is None:
            return None
        low, high = self.interval
        return True if low > bound else False if high <= bound else None

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference of two independent estimates, with an interval computed from theirs.

        This is the method of variance estimates recovery (Zou & Donner 2008, Statistics in Medicine 27:1693, eq. 4):
        each end of the interval is computed from the distances of the estimates to their own ends, so skewed intervals
        stay skewed. Two runs that are scored on the same text have correlated errors, so their true difference is
        *more* certain than this says: the interval is conservative.
        """
        if self.value is None or other.value is None:
            return Estimate()
        value = self.value - other.value
        if self.interval is None or other.interval is None:
            return Estimate(value)
        (low, high), (other_low, other_high) = self.interval, other.interval
        return Estimate(
            value,
            value - math.hypot(self.value - low, other_high - other.value),
            value + math.hypot(high - self.value, other.value - other_low),
        )


def mean(estimates: Iterable[Estimate]) -> Estimate:
    """Return the mean of independent estimates, with an interval by the rule of :meth:`Estimate.minus`."""
    known = [estimate for estimate in estimates if estimate.value is not None]
    if not known:
        return Estimate()
    value = sum(e.value or 0.0 for e in known) / len(known)
    intervals = [(e.value or 0.0, *e.interval) for e in known if e.interval is not None]
    if len(intervals) < len(known):
        return Estimate(value)
    below = math.sqrt(sum((middle - low) ** 2 for middle, low, _ in intervals)) / len(known)
    above = math.sqrt(sum((high - middle) ** 2 for middle, _, high in intervals)) / len(known)
    return Estimate(value, value - below, value + above)
