"""How long the rest of a run will take: how much of each kind of work is ahead × what that kind has taken so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

ROWS = "rows to train on"
AROUND = "what methods do around a stage"
SETS = "held-out sets to score"
"""Kinds of work; each end task is one more, under its name."""


class Forecast:
    """Counts work that is done in a session, and says how long the rest will take.

    A kind of which nothing was measured yet counts nothing: scores of the base model may come from the cache, and then
    scoring is unknown until the first stage is learnt.
    """

    def __init__(self) -> None:
        self.ahead: Counter[str] = Counter()
        """Kind → how much of it is still to be done."""
        self._done: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def took(self, kind: str, amount: int, seconds: float | None) -> None:
        """So much is done now; None for its seconds where that says nothing about the rest (found in a cache)."""
        self.ahead[kind] -= amount
        if seconds is not None:
            self._done[kind] += amount
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds

    def seconds(self, work: Mapping[str, int] | None = None) -> float:
        """Seconds that this work will take; everything ahead when left out."""
        work = self.ahead if work is None else work
        return sum(
            max(0, amount) * self._seconds[kind] / self._done[kind]
            for kind, amount in work.items()
            if self._done[kind] > 0
        )
