"""The causal study's measures of one cell of a grid, in bits per byte, for its claims."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from everlearn.evaluation.quantities import QUANTITIES
from everlearn.grid.cells import CellResult, Moment
from everlearn_bench.suites.claims import Number
from everlearn_bench.transfer_study.measures import StreamLosses
from everlearn_bench.transfer_study.saturation import saturation

_MOMENTS = {"continual": "learnt", "lc": "gained", "fg": "forgotten"}
"""What follows from three moments, which every entry has: number → quantity."""
LATE = "late"


def transfer(cell: CellResult, number: Number) -> dict[str, float]:
    """Return the parts whose mean a number of the study is; empty if the cell cannot have it.

    =============  ============================================================================================
    ``continual``  domain → base model − right after its own stage; of domains learnt alone this is DAPT
    ``lc``         domain → base model − last checkpoint
    ``fg``         earlier domain → last checkpoint − right after its own stage
    ``backward``   earlier domain → the mean over all later checkpoints of base model − checkpoint
    ``forward``    later domain → the mean over all checkpoints before its own stage of base model − checkpoint
    ``late``       gap n − i → what checkpoints of the second half have forgotten, less those of the first
    =============  ============================================================================================
    """
    if number in _MOMENTS:
        return _between(cell, _MOMENTS[number])
    stream = stream_of(cell)
    if stream is None:
        return {}
    if number != LATE:
        return stream.each().get(number, {})
    found = saturation([stream], buckets=2)
    if found is None:
        return {}
    early, late = found.buckets
    return {f"gap {gap}": late.gaps[gap] - early.gaps[gap] for gap in sorted(early.gaps.keys() & late.gaps.keys())}


def stream_of(
    cell: CellResult, alone: CellResult | None = None, groups: Mapping[str, str] | None = None
) -> StreamLosses | None:
    """Bits per byte of the domains after each; None where nothing was learnt in an order.

    Args:
        cell: of the stream.
        alone: of the same domains, each learnt alone; left out where it began with another base model.
        groups: domain → its super-domain.
    """
    if cell.matrix is None or cell.order is None:
        return None
    scores = {
        (row, column): value
        for row, values in enumerate(cell.matrix.values)
        for column, value in zip(cell.matrix.columns, values, strict=True)
        if value is not None
    }
    own = {} if alone is None or not _same_base(cell, alone) else _at(alone, "learnt")
    return StreamLosses.of(cell.matrix.rows, cell.matrix.columns, scores, own, groups)


def learnt_alone(cell: CellResult, groups: Mapping[str, str] | None = None) -> StreamLosses:
    """Bits per byte of the base model and of one model for each domain: there is DAPT, and nothing of a stream."""
    scores = {(0, name): value for name, value in _at(cell, "base").items()}
    return StreamLosses.of(["base", *cell.domains], cell.domains, scores, _at(cell, "learnt"), groups)


def _same_base(cell: CellResult, other: CellResult) -> bool:
    """Whether both began with one model: its scores are the same, but for what another machine rounds otherwise."""
    ours, theirs = _at(cell, "base"), _at(other, "base")
    return all(math.isclose(ours[name], theirs[name], rel_tol=1e-3) for name in ours.keys() & theirs.keys())


def _at(cell: CellResult, moment: Moment) -> dict[str, float]:
    """Domain → bits per byte at a moment."""
    known = {name: cell.bits_per_byte.get(name, {}) for name in cell.domains}
    return {name: moments[moment] for name, moments in known.items() if moment in moments}


def _between(cell: CellResult, quantity: str) -> dict[str, float]:
    """Return a quantity of every domain that has all of its moments."""
    earlier = cell.domains[:-1] if cell.order is not None else []
    found = dict[str, float]()
    for name in earlier if quantity == "forgotten" else cell.domains:
        moments: dict[Moment, float] = cell.bits_per_byte.get(name, {})
        value = QUANTITIES[quantity].at(moments, higher_is_better=False)
        if not np.isnan(value):
            found[name] = value
    return found
