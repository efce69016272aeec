"""Estimate the time that a run still needs: amount of each kind of work × its measured time per unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

ROWS = "rows to train on"
PASSES = "rows that methods measure on"
AROUND = "what else is done around a stage"
SETS = "held-out sets to score"
SAMPLES = "held-out sets to write samples for"
"""Kinds of work. Each end task is a further kind, under its name."""

HELD = 0.1
"""How many units the expected time per unit counts for in the average with the measured one, as a share of the
remaining units."""


class Forecast:
    """Count the work done in this session and estimate the time of the rest.

    The time per unit of a kind that was not measured yet is estimated from its weight and the kinds that were; without
    a weight it is 0. First measurements may be slow, so they are averaged with this expected time.
    """

    def __init__(self) -> None:
        self.ahead: Counter[str] = Counter()
        """Kind → amount that is still to be done."""
        self.weights: dict[str, float] = {}
        """Kind → expected time of a unit, relative to one row's forward and backward pass."""
        self._done: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    @property
    def measured(self) -> float:
        """Return the seconds of all measured work."""
        return sum(self._seconds.values())

    def took(self, kind: str, amount: int, seconds: float | None) -> None:
        """Count `amount` as done; `seconds` is None if its time says nothing about the rest (a cache hit)."""
        self.ahead[kind] -= amount
        if seconds is not None:
            self._done[kind] += amount
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def settle(self, kind: str, ahead: int, *, counts: bool) -> None:
        """Correct the remaining amount of a kind whose amount was declared in advance, but was not exact.

        Args:
            kind: the kind of work.
            ahead: amount that is still to be done.
            counts: whether the measured time covers everything declared so far; the time per unit then refers to the
                declared amount, as `ahead` does.
        """
        rest = self.ahead[kind] - ahead
        self.ahead[kind] = ahead
        if counts and self._done[kind] > 0 and self._done[kind] + rest > 0:
            self._done[kind] += rest

    def seconds(self, work: Mapping[str, int] | None = None) -> float:
        """Estimate the seconds of this work; of all remaining work if it is None."""
        work = self.ahead if work is None else work
        row = self._row()
        return sum(max(0, amount) * self._unit(kind, row) for kind, amount in work.items())

    def left(self) -> float | None:
        """Estimate the seconds of all remaining work; None while nothing was measured, or if the work is not known."""
        known = any(count > 0 for count in self._done.values()) and any(count >= 0 for count in self.ahead.values())
        return self.seconds() if known else None

    def _unit(self, kind: str, row: float) -> float:
        expected, done = self.weights.get(kind, 0.0) * row, max(0, self._done[kind])
        if not expected:
            return self._seconds[kind] / done if done else 0.0
        held = HELD * max(0, self.ahead[kind]) if done else 1.0
        return ((self._seconds[kind] if done else 0.0) + held * expected) / (done + held)

    def _row(self) -> float:
        """Return the seconds of one row's forward and backward pass, from training if it was measured."""
        known = [kind for kind, done in self._done.items() if done > 0 and self.weights.get(kind)]
        known = [ROWS] if ROWS in known else known
        rows = sum(self._done[kind] * self.weights[kind] for kind in known)
        return sum(self._seconds[kind] for kind in known) / rows if rows else 0.0
