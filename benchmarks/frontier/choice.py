"""The rule that chooses the strength of each row, and the recommended configuration.

The aim is at least 98 % of what plain training learns, with at most 25 % of its forgetting and 25 % of its drift on
general text. Configurations (a method with its options and a learning rate) are compared as follows:

* Those that reach the aim on every stream come first. Among them the best has the smallest sum of forgetting and
  drift, averaged over the streams.
* If none reaches it, the best is the nearest to the aim: the smallest distance from the point (98 % learning, 25 %
  forgetting, 25 % drift), averaged over the streams. Being better than the aim in one number does not make up for
  another.
* Of two equal ones the first by name is taken.

The strength of a row is chosen on each stream separately, with the first seed. The recommended configuration is
chosen on both streams together, among those that do not learn from old text (earlier domains or general text). The
first seed selects three candidates, which are then run with all seeds on both streams; the other seeds decide
between the three. Numbers are taken from the other seeds wherever they exist, because the seed that selected the
best of many makes it look better than it is.

The rule was changed once, when only the results of penalties on the causal stream were known. Before, every
configuration with 98 % of the learning came before all others, whatever it forgot: 98, 80, 32 % counted as better
than 97, 25, 25 %.
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
"""The seeds with which strengths are chosen; the number of seeds that a recommendation needs."""
CANDIDATES = 3
"""Number of configurations that are run with all seeds on both streams before one is recommended."""


@dataclass(frozen=True)
class AgainstPlain:
    """The numbers of a configuration as shares of plain training's."""

    kept: float
    forgotten: float
    drift: float

    @classmethod
    def of(cls, line: Line, plain: Line) -> AgainstPlain | None:
        """Return the means over the runs of `line`; None if a number is missing."""
        shares = shares_of_plain(line, plain)
        names = (LEARNT, FORGOTTEN, DRIFT)
        return cls(*(shares[name].mean for name in names)) if all(name in shares for name in names) else None

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> AgainstPlain:
        """Return the numbers in a group of ``frontier.json``."""
        return cls(raw["kept"], raw["forgotten"], raw["drift"])

    @property
    def meets(self) -> bool:
        """Return whether the aim is reached."""
        return self.kept >= ENOUGH and max(self.forgotten, self.drift) <= MOST

    @property
    def distance(self) -> float:
        """Return the distance from the aim."""
        return math.hypot(*(max(0.0, by) for by in (ENOUGH - self.kept, self.forgotten - MOST, self.drift - MOST)))


def rank(scores: Sequence[AgainstPlain]) -> tuple[bool, float]:
    """Return the sort key of a configuration with these scores on the streams; the smallest is the best."""
    meet = all(each.meets for each in scores)
    losses = [each.forgotten + each.drift if meet else each.distance for each in scores]
    return (not meet, sum(losses) / len(losses))


def best(shares: Mapping[str, Sequence[AgainstPlain]]) -> list[str]:
    """Return the names, the best first."""
    return sorted(shares, key=lambda name: (rank(shares[name]), name))


def scored(lines: Mapping[str, Line]) -> dict[str, AgainstPlain]:
    """Return the shares of all configurations except plain training."""
    plain = lines.get(PLAIN)
    shares = {} if plain is None else {n: AgainstPlain.of(line, plain) for n, line in lines.items() if n != PLAIN}
    return {name: scores for name, scores in shares.items() if scores is not None}


def chosen(rows: Mapping[str, Mapping[str, Way]], lines: Mapping[str, Line]) -> dict[str, str]:
    """Return the best configuration of each row on one stream; rows without results are left out."""
    scores = scored(lines)
    candidates_of_row = {row: {name: [scores[name]] for name in names if name in scores} for row, names in rows.items()}
    return {row: best(each)[0] for row, each in candidates_of_row.items() if each}


def on_all(streams: Sequence[Mapping[str, Line]]) -> dict[str, list[AgainstPlain]]:
    """Return the configurations that learn from no old text and have results on every stream."""
    each = [scored(lines) for lines in streams]
    names = [name for name in each[0] if all(name in other for other in each[1:])]
    return {name: [scores[name] for scores in each] for name in names if not reads_old_text(streams[0][name])}


def candidates(results: Path) -> list[str]:
    """Return the best configurations on both streams by the first seed."""
    return best(on_all([lines_of(results / stream, FIRST) for stream in STREAMS]))[:CANDIDATES]


def recommended(results: Path) -> str | None:
    """Return the best candidate by the other seeds; None until each has enough seeds on both streams."""
    streams = [lines_of(results / stream, without=FIRST) for stream in STREAMS]
    scores, named = on_all(streams), candidates(results)
    others = SEEDS - len(FIRST)
    complete = all(name in scores and all(len(lines[name].runs) >= others for lines in streams) for name in named)
    return best({name: scores[name] for name in named})[0] if named and complete else None
