"""Which strength of a row is run with all seeds, and which row is recommended: one rule.

The aim is at least 98 % of what plain training learns, with at most 25 % of its forgetting and 25 % of its drift left.
Of several ways the best is

* among those that reach it on every stream asked about the one with the least forgetting left + drift left, mean over
  these streams;
* where none does, the one nearest to it: the distance from the corner of 98 % learning, 25 % forgetting and 25 % drift
  (what is better than the corner counts as the corner), mean over the streams.

The rule was changed once, when the penalties on the causal stream were known and nothing else was: before, ways that
learn 98 % came before all others, whatever they forget, so that 98, 80, 32 % was better than 97, 25, 25 %.

A row's strength is chosen by this on each stream alone, from the first seed. Recommended is the best on both streams
together, of all ways that learn from no old text again (of earlier domains, or general text): by the first seed the
three best, which get all seeds on both streams, and of these the best by the other seeds. Scores of a
chosen strength are those of the other seeds too, since with the seed that chose it the best of many is biased upwards.
Of two that are equally good the first by name counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rows import STREAMS, Way, lines_of, reads_old_text

from everlearn.grid import Line
from everlearn.grid.relative_to_plain import DRIFT, FORGOTTEN, LEARNT, shares_of_plain
from everlearn.methods.sequential import PLAIN

ENOUGH, MOST = 0.98, 0.25
"""The aim: learning kept, and forgetting and drift left."""
FIRST, SEEDS = (1,), 3
"""The seeds that strengths are chosen with; how many a recommendation needs."""
CANDIDATES = 3
"""Ways that get all seeds on both streams before one is recommended."""


@dataclass(frozen=True)
class AgainstPlain:
    """A way of training against plain training, as shares."""

    kept: float
    forgotten: float
    drift: float

    @classmethod
    def of(cls, line: Line, plain: Line) -> AgainstPlain | None:
        """Means over its runs; None where a number is missing."""
        found = shares_of_plain(line, plain)
        names = (LEARNT, FORGOTTEN, DRIFT)
        return cls(*(found[name].mean for name in names)) if all(name in found for name in names) else None

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> AgainstPlain:
        """From what a file says of it."""
        return cls(raw["kept"], raw["forgotten"], raw["drift"])

    @property
    def meets(self) -> bool:
        """Whether the aim is reached."""
        return self.kept >= ENOUGH and max(self.forgotten, self.drift) <= MOST

    @property
    def distance(self) -> float:
        """From the corner of the aim."""
        return math.hypot(*(max(0.0, by) for by in (ENOUGH - self.kept, self.forgotten - MOST, self.drift - MOST)))


def rank(scores: Sequence[AgainstPlain]) -> tuple[bool, float]:
    """A way's place by its scores on the streams: the least is the best."""
    meet = all(each.meets for each in scores)
    losses = [each.forgotten + each.drift if meet else each.distance for each in scores]
    return (not meet, sum(losses) / len(losses))


def best(ways: Mapping[str, Sequence[AgainstPlain]]) -> list[str]:
    """Names, the best first."""
    return sorted(ways, key=lambda name: (rank(ways[name]), name))


def scored(lines: Mapping[str, Line]) -> dict[str, AgainstPlain]:
    """Of all ways but plain training."""
    plain = lines.get(PLAIN)
    found = {} if plain is None else {n: AgainstPlain.of(line, plain) for n, line in lines.items() if n != PLAIN}
    return {name: scores for name, scores in found.items() if scores is not None}


def chosen(rows: Mapping[str, Mapping[str, Way]], lines: Mapping[str, Line]) -> dict[str, str]:
    """Row → its best entry on one stream; rows of which nothing has been measured are left out."""
    found = scored(lines)
    ways = {row: {name: [found[name]] for name in names if name in found} for row, names in rows.items()}
    return {row: best(each)[0] for row, each in ways.items() if each}


def on_all(streams: Sequence[Mapping[str, Line]]) -> dict[str, list[AgainstPlain]]:
    """Ways that learn from no old text again, and have been measured on every stream."""
    each = [scored(lines) for lines in streams]
    names = [name for name in each[0] if all(name in other for other in each[1:])]
    return {name: [scores[name] for scores in each] for name in names if not reads_old_text(streams[0][name])}


def candidates(results: Path) -> list[str]:
    """The best ways on both streams by the first seed."""
    return best(on_all([lines_of(results / stream, FIRST) for stream in STREAMS]))[:CANDIDATES]


def recommended(results: Path) -> str | None:
    """The best of the candidates by the other seeds; None until each of them has enough on both streams."""
    streams = [lines_of(results / stream, without=FIRST) for stream in STREAMS]
    ways, named = on_all(streams), candidates(results)
    others = SEEDS - len(FIRST)
    complete = all(name in ways and all(len(lines[name].runs) >= others for lines in streams) for name in named)
    return best({name: ways[name] for name in named})[0] if named and complete else None
