"""Test whether later stages forget more: forgetting by the gap between checkpoint and domain, in buckets.

B[n, i] is the loss of domain i after n > i domains minus the loss right after its own stage (nats per token; positive
if forgotten). Checkpoints n are grouped into buckets by their position. The plain mean of a bucket says little: late
checkpoints look back further, so their gaps n − i are larger. There are two controls:

* **equal gap**: buckets are compared at gaps that both have, each gap with the same weight;
* **position**: domains at small gaps from a late checkpoint are late domains, which may be easier to forget. If several
  orders of the same domains were run, B[n, i] = gap + bucket + domain is solved by least squares, so that every domain
  is compared with itself at other positions. With a single order this is impossible, since gap, position and domain
  determine each other; the domain term is then left out.

The study is arXiv 2402.17400, one of whose findings is that later stages forget more. Both controls are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everlearn.evaluation.statistics import Floats
from everlearn_bench.transfer_study.measures import StreamLosses

BUCKETS = 4
"""Default number of buckets: quartiles of the positions."""


@dataclass(frozen=True)
class Bucket:
    """Consecutive checkpoints.

    Attributes:
        first: position of its first checkpoint.
        last: position of its last checkpoint.
        mean: mean of B over all its pairs (n, i), without control for gaps; None if it has no pair.
        gaps: gap n − i → mean of B over the pairs with this gap.
    """

    first: int
    last: int
    mean: float | None
    gaps: dict[int, float]


@dataclass(frozen=True)
class SaturationByGap:
    """Forgetting by position and gap.

    Attributes:
        buckets: the buckets, by position.
        later: for each bucket after the first, how much more it forgets than the first at equal gap; None if they have
            no gap in common.
        adjusted: the same from least squares, with a domain term if orders differ; None if it is not determined.
        orders: number of different orders.
    """

    buckets: tuple[Bucket, ...]
    later: tuple[float | None, ...]
    adjusted: tuple[float | None, ...]
    orders: int


def forgotten(stream: StreamLosses) -> Floats:
    """Return B[n, i] for all n > i ≥ 1, [T + 1, D]; NaN elsewhere and where it was not measured."""
    differences = np.full(stream.losses.shape, np.nan)
    for column, own in enumerate(stream.stages):
        differences[own + 1 :, column] = stream.losses[own + 1 :, column] - stream.losses[own, column]
    return differences


def long_enough(domains: int, buckets: int = BUCKETS) -> bool:
    """Return whether each bucket has at least two checkpoints; the first one, without a past, is in none."""
    return domains - 1 >= 2 * buckets


def saturation(streams: Sequence[StreamLosses], buckets: int = BUCKETS) -> SaturationByGap | None:
    """Compare buckets of one run, or of several of the same length (seeds, orders), whose pairs are combined.

    Returns:
        The comparison; None if the runs are not :func:`long_enough`.
    """
    longest = min((len(stream.losses) - 1 for stream in streams), default=0)
    if not long_enough(longest, buckets):
        return None
    parts = np.array_split(np.arange(2, longest + 1), buckets)
    pairs = [
        (number, row - stream.stages[column], stream.domains[column], value)
        for number, part in enumerate(parts)
        for stream in streams
        for row in part.tolist()
        for column, value in enumerate(forgotten(stream)[row].tolist())
        if np.isfinite(value)
    ]
    bucketed = []
    for number, part in enumerate(parts):
        own = [pair for pair in pairs if pair[0] == number]
        gaps = {
            gap: float(np.mean([pair[3] for pair in own if pair[1] == gap]))
            for gap in sorted({pair[1] for pair in own})
        }
        mean = float(np.mean([pair[3] for pair in own])) if own else None
        bucketed.append(Bucket(int(part[0]), int(part[-1]), mean, gaps))
    orders = len({stream.domains for stream in streams})
    return SaturationByGap(
        tuple(bucketed),
        tuple(at_equal_gap(bucket, bucketed[0]) for bucket in bucketed[1:]),
        _least_squares(pairs, buckets, with_domains=orders > 1),
        orders,
    )


def at_equal_gap(late: Bucket, early: Bucket) -> float | None:
    """Return how much more `late` forgets: the mean difference over the gaps that both have."""
    both = late.gaps.keys() & early.gaps.keys()
    return float(np.mean([late.gaps[gap] - early.gaps[gap] for gap in both])) if both else None


def _least_squares(
    pairs: Sequence[tuple[int, int, str, float]], buckets: int, *, with_domains: bool
) -> tuple[float | None, ...]:
    """Solve B = gap + bucket (+ domain) and return the term of each bucket after the first; None if undetermined."""
    gaps = {gap: place for place, gap in enumerate(sorted({pair[1] for pair in pairs}))}
    domains = {domain: place for place, domain in enumerate(sorted({pair[2] for pair in pairs}))}
    places = [[gaps[gap]] for _, gap, _, _ in pairs]
    for own, (bucket, _, domain, _) in zip(places, pairs, strict=True):
        own += [len(gaps) + bucket - 1] if bucket else []
        own += [len(gaps) + buckets - 2 + place] if with_domains and (place := domains[domain]) else []
    width = len(gaps) + buckets - 1 + (max(0, len(domains) - 1) if with_domains else 0)
    columns = np.concatenate(places) if places else np.zeros(0, int)
    ends = np.cumsum([0, *map(len, places)])
    from scipy.sparse import csr_array  # takes long to import

    # Sparse: hundreds of domains have hundreds of thousands of pairs, with three ones in each row.
    design = csr_array((np.ones(len(columns)), columns, ends), shape=(len(pairs), width))
    sizes, directions = np.linalg.eigh((design.T @ design).toarray())
    determined = sizes >= 1e-9 * max(sizes.max(initial=0.0), 1.0)
    seen, null = directions[:, determined], directions[:, ~determined]
    solved = seen @ ((seen.T @ (design.T @ np.array([pair[3] for pair in pairs]))) / sizes[determined])
    # A term is determined if no direction that leaves all predictions unchanged changes it.
    return tuple(
        float(solved[place]) if not np.any(np.abs(null[place]) > 1e-6) else None
        for place in range(len(gaps), len(gaps) + buckets - 1)
    )
