"""The causal study's measures of one cell of a grid, in bits per byte, for its claims."""

from __future__ import annotations

import math
from collections.abc import Mapping

from everlearn.comparison.runs import Run
from everlearn.grid.numbers import BITS, parts
from everlearn_bench.suites.claims import Number
from everlearn_bench.transfer_study.measures import StreamLosses
from everlearn_bench.transfer_study.saturation import saturation

_NUMBERS = {"continual": "bits_learnt", "lc": "bits_held", "fg": "bits_forgotten"}
"""Numbers that every row has: name in the claims → name in the grid."""
LATE = "late"


def transfer(run: Run, number: Number) -> dict[str, float]:
    """Return the values that a number of the study is the mean of; empty if the run lacks it.

    =============  ============================================================================================
    ``continual``  domain → base model − right after its own stage; of domains learnt alone this is DAPT
    ``lc``         domain → base model − last checkpoint
    ``fg``         earlier domain → last checkpoint − right after its own stage
    ``backward``   earlier domain → the mean over all later checkpoints of base model − checkpoint
    ``forward``    later domain → the mean over all checkpoints before its own stage of base model − checkpoint
    ``late``       gap n − i → what checkpoints of the second half have forgotten, less those of the first
    =============  ============================================================================================
    """
    if number in _NUMBERS:
        return parts(run, _NUMBERS[number])
    stream = stream_of(run)
    if stream is None:
        return {}
    if number != LATE:
        return stream.each().get(number, {})
    by_gap = saturation([stream], buckets=2)
    if by_gap is None:
        return {}
    early, late = by_gap.buckets
    return {f"gap {gap}": late.gaps[gap] - early.gaps[gap] for gap in sorted(early.gaps.keys() & late.gaps.keys())}


def stream_of(run: Run, alone: Run | None = None, groups: Mapping[str, str] | None = None) -> StreamLosses | None:
    """Return the bits per byte of all domains after each stage; None if the run has no order of domains.

    Args:
        run: run of the stream.
        alone: run of the same domains, each learnt alone; left out if it began with another base model.
        groups: domain → its super-domain.
    """
    table = run.matrices.get(BITS)
    if table is None or run.grid.order is None:
        return None
    scores = {place: score.value for place, score in table.scores.items() if score.value is not None}
    own = {} if alone is None or not _same_base(run, alone) else _at(alone, 1)
    return StreamLosses.of(table.rows, table.columns, scores, own, groups)


def learnt_alone(run: Run, groups: Mapping[str, str] | None = None) -> StreamLosses:
    """Return the bits per byte of the base model and of models trained on one domain each (DAPT)."""
    scores = {(0, name): value for name, value in _at(run, 0).items()}
    return StreamLosses.of(["base", *run.domains], run.domains, scores, _at(run, 1), groups)


def _same_base(run: Run, other: Run) -> bool:
    """Return whether both started from the same model, whose scores are equal up to rounding."""
    ours, others = _at(run, 0), _at(other, 0)
    return all(math.isclose(ours[name], others[name], rel_tol=1e-3) for name in ours.keys() & others.keys())


def _at(run: Run, row: int) -> dict[str, float]:
    """Return the bits per byte of each domain after a row of the score matrix; row 0 is the base model."""
    table = run.matrices[BITS]
    return {name: value for name in run.domains if (value := table.cell(row, name).value) is not None}
