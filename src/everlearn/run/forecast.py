"""How long the rest of a run will take: how much of each kind of work is ahead × what that kind has taken so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

ROWS = "rows to train on"
PASSES = "rows that methods measure on"
AROUND = "what else is done around a stage"
SETS = "held-out sets to score"
SAMPLES = "held-out sets to write samples for"
"""Kinds of work; each end task is one more, under its name."""

HELD = 0.1
"""What was expected of a unit beforehand counts as much as this share of what is ahead, measured."""


class Forecast:
    """Counts work that is done in a session, and says how long the rest will take.

    A kind that was not measured yet takes what its weight says, as soon as something else was measured; one without a
    weight counts nothing until then. The first measurements of a kind, which may be slow, do not yet speak for all.
    """

    def __init__(self) -> None:
        self.ahead: Counter[str] = Counter()
        """Kind → how much of it is still to be done."""
        self.weights: dict[str, float] = {}
        """Kind → what a unit of it takes beforehand, in rows that go forward and backward through the model."""
        self._done: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    @property
    def measured(self) -> float:
        """Seconds of all work that was measured."""
        return sum(self._seconds.values())

    def took(self, kind: str, amount: int, seconds: float | None) -> None:
        """So much is done now; None for its seconds where that says nothing about the rest (found in a cache)."""
        self.ahead[kind] -= amount
        if seconds is not None:
            self._done[kind] += amount
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def settle(self, kind: str, ahead: int, *, counts: bool) -> None:
        """Correct what is ahead of a kind whose amounts were declared and not counted.

        Args:
            kind: the kind.
            ahead: what is still to be done.
            counts: whether all that was declared up to here has been done and measured, so that from now on a unit
                takes what a declared one has taken.
        """
        rest = self.ahead[kind] - ahead
        self.ahead[kind] = ahead
        if counts and self._done[kind] > 0 and self._done[kind] + rest > 0:
            self._done[kind] += rest

    def seconds(self, work: Mapping[str, int] | None = None) -> float:
        """Seconds that this work will take; everything ahead when left out."""
        work = self.ahead if work is None else work
        row = self._row()
        return sum(max(0, amount) * self._unit(kind, row) for kind, amount in work.items())

    def left(self) -> float | None:
        """Seconds that everything ahead will take; None as long as nothing was measured."""
        return self.seconds() if any(count > 0 for count in self._done.values()) else None

    def _unit(self, kind: str, row: float) -> float:
        expected, done = self.weights.get(kind, 0.0) * row, max(0, self._done[kind])
        if not expected:
            return self._seconds[kind] / done if done else 0.0
        held = HELD * max(0, self.ahead[kind]) if done else 1.0
        return ((self._seconds[kind] if done else 0.0) + held * expected) / (done + held)

    def _row(self) -> float:
        """Seconds of a row forward and backward: as training has it, or else as all that was measured has it."""
        known = [kind for kind, done in self._done.items() if done > 0 and self.weights.get(kind)]
        known = [ROWS] if ROWS in known else known
        rows = sum(self._done[kind] * self.weights[kind] for kind in known)
        return sum(self._seconds[kind] for kind in known) / rows if rows else 0.0
