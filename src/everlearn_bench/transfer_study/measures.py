"""Measure what a stream learns, retains and transfers as in the causal study: differences of log-perplexities.

R[n, c] is the loss of column c after n of T domains (nats per token, the logarithm of a perplexity, or bits per byte),
and U = −R as in :mod:`everlearn.evaluation.quantities`. R[0, c] is ZS, the base model. R[alone, c] is FT or DAPT, the
base model trained on that domain alone. R[j, c] of the domain learnt as number j is CPT. R[T, c] is LC.

===================  ==================================  ==========================================
measure              column of domain j                  in the study's words
===================  ==================================  ==========================================
dapt                 U[alone] − U[0]                     log ZS − log DAPT
continual            U[j] − U[0]                         log ZS − log CPT
continual_over_dapt  U[j] − U[alone]                     log DAPT − log CPT
lc                   U[T] − U[0]                         log ZS − log LC
fg                   U[j] − U[T]              for j < T  log LC − log CPT
fg_max               max(U[j..T]) − U[T]      for j < T  log LC − min over m ≥ j of log P(θ_m)
backward             mean over n > j of U[n] − U[0]      B[n, j] against ZS
backward_own         mean over n > j of U[n] − U[j]      B[n, j] against CPT: below 0 is forgetting
forward              mean over 1 ≤ n < j of U[n] − U[0]  F[n, j] = log ZS − log P(θ_n)
===================  ==================================  ==========================================

All measures are those of the study (arXiv 2402.17400), except for the two forms of FG, of which the study gives only
the name, and `backward_own`. Raw perplexities are never averaged, since a few outlying domains would dominate the mean.
Mean and median over domains are given for all domains and for each super-domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from everlearn.evaluation.quantities import QUANTITIES, Quantity, Scores
from everlearn.evaluation.statistics import Floats

ALONE = -1
"""Row of the base model trained on a column's domain alone."""
ALL = "all"
"""Key of all domains together, beside their groups."""


def _over(u: Scores, rows: Iterable[int], against: int) -> Floats:
    """Return the mean difference over the rows that were measured."""
    differences = [u[row] - u[against] for row in rows if row in u.place]
    return np.asarray(np.mean(differences, axis=0) if differences else u[ALONE] * np.nan)


def _measure(key: str, title: str, meaning: str, quantity: Quantity | None = None, **own: object) -> Quantity:
    """Make a measure of the study, from a quantity if there is one."""
    taken = vars(quantity or QUANTITIES["learnt"]) | {"key": key, "title": title, "meaning": meaning} | own
    return Quantity(**taken)


MEASURES: dict[str, Quantity] = {
    each.key: each
    for each in (
        _measure(
            "dapt",
            "DAPT against ZS",
            "How much training on a domain alone gains.",
            formula=lambda u, j, last: u[ALONE] - u[0],
        ),
        _measure("continual", "CPT against ZS", "How much better right after its stage than the base model."),
        _measure(
            "continual_over_dapt",
            "CPT against DAPT",
            "How much better right after the domain was learnt in the stream than where it was learnt alone.",
            formula=lambda u, j, last: u[j] - u[ALONE],
        ),
        _measure(
            "lc", "LC against ZS", "How much better the last checkpoint is than the base model.", QUANTITIES["gained"]
        ),
        _measure("fg", "FG", "Lost between the domain's own stage and the last checkpoint.", QUANTITIES["forgotten"]),
        _measure(
            "fg_max",
            "FG, max form",
            "Lost between the best checkpoint since the domain's own stage and the last one.",
            QUANTITIES["forgotten_max"],
        ),
        _measure(
            "backward",
            "Backward transfer against ZS",
            "The mean over all later checkpoints: how much better than the base model.",
            QUANTITIES["backward_transfer"],
            formula=lambda u, j, last: _over(u, range(j + 1, last + 1), 0),
        ),
        _measure(
            "backward_own",
            "Backward transfer against CPT",
            "The mean over all later checkpoints: how much better than right after the domain was learnt.",
            QUANTITIES["backward_transfer"],
            formula=lambda u, j, last: _over(u, range(j + 1, last + 1), j),
        ),
        _measure(
            "forward",
            "Forward transfer",
            "The mean over all checkpoints before the domain's own stage: how much better than the base model.",
            QUANTITIES["forward_transfer"],
            formula=lambda u, j, last: _over(u, range(1, min(j, last + 1)), 0),
        ),
    )
}
"""The study's measures by name; all apply to columns of a domain."""


@dataclass(frozen=True)
class Spread:
    """One measure over several domains.

    Attributes:
        mean: mean over the domains.
        median: median over the domains.
        domains: number of domains with a value.
    """

    mean: float
    median: float
    domains: int


@dataclass(frozen=True)
class StreamLosses:
    """The losses of a stream of domains.

    Attributes:
        domains: domains with held-out text, in the order in which they were learnt, [D].
        stages: number of the stage of each domain, [D].
        losses: R[n, i], [T + 1, D]; NaN where it was not measured.
        alone: losses of the base model trained on each domain alone, [D]; NaN where that was not run.
        groups: domain → its super-domain, if it has one.
    """

    domains: tuple[str, ...]
    stages: tuple[int, ...]
    losses: Floats
    alone: Floats
    groups: Mapping[str, str]

    @classmethod
    def of(
        cls,
        rows: Sequence[str],
        columns: Sequence[str],
        scores: Mapping[tuple[int, str], float],
        alone: Mapping[str, float] | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> StreamLosses:
        """Make the losses from a table of scores.

        Args:
            rows: labels of the rows: the base model, then the domain learnt last.
            columns: names of the columns; domains without held-out text are missing.
            scores: (number of the row, column) → loss.
            alone: domain → loss of the base model trained on it alone.
            groups: domain → its super-domain.
        """
        stages = {name: row for row, name in enumerate(rows) if row and name in columns}
        losses = [[scores.get((row, name), np.nan) for name in stages] for row in range(len(rows))]
        own = [(alone or {}).get(name, np.nan) for name in stages]
        shape = (len(rows), len(stages))
        return cls(
            tuple(stages),
            tuple(stages.values()),
            np.array(losses, np.float64).reshape(shape),
            np.array(own, np.float64),
            dict(groups or {}),
        )

    def each(self) -> dict[str, dict[str, float]]:
        """Return values by measure and domain; absent if one does not apply or was not measured."""
        last, measures = len(self.losses) - 1, dict[str, dict[str, float]]()
        for place, (name, stage) in enumerate(zip(self.domains, self.stages, strict=True)):
            measured = [row for row in range(last + 1) if np.isfinite(self.losses[row, place])]
            values = np.array([self.alone[place], *self.losses[measured, place]])
            scores = Scores((ALONE, *measured), values)
            for key, measure in MEASURES.items():
                if not measure.applies(stage, last):
                    continue
                value = float(measure.of(scores, stage, last, higher_is_better=False))
                if np.isfinite(value):
                    measures.setdefault(key, {})[name] = value
        return measures

    def spread(self) -> dict[str, dict[str, Spread]]:
        """Return mean and median over domains, by measure and by :data:`ALL` and super-domain."""
        return {
            key: {
                group: Spread(mean=float(np.mean(own)), median=float(np.median(own)), domains=len(own))
                for group, members in self.members().items()
                if (own := [values[name] for name in members if name in values])
            }
            for key, values in self.each().items()
        }

    def members(self) -> dict[str, Sequence[str]]:
        """Return all domains, and those of each super-domain, by first appearance."""
        by_group: dict[str, Sequence[str]] = {ALL: self.domains}
        for group in dict.fromkeys(self.groups[name] for name in self.domains if name in self.groups):
            by_group[group] = [name for name in self.domains if self.groups.get(name) == group]
        return by_group
