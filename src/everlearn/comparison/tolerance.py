"""Judge general drift against a bound: the loss on general text up to which a run is recommended."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from everlearn.comparison.runs import Run
from everlearn.config.reading import read_saved
from everlearn.evaluation.estimate import Estimate, number
from everlearn.evaluation.quantities import TOLERATED_DRIFT

METRIC, KEY = "bits_per_byte", "general_drift"


class Side(StrEnum):
    """Position of a run's general drift relative to the bound."""

    WITHIN = "within"
    BEYOND = "beyond"
    UNDECIDED = "undecided"
    """The interval contains the bound, or there is no interval."""
    NOT_MEASURED = "not measured"


def tolerance_of(runs: Iterable[Run]) -> float:
    """Return the bound that the runs' recipes set (``report.tolerate``), the lowest if they differ."""
    return min(_own(run) for run in runs)


def _own(run: Run) -> float:
    raw = read_saved(run.recipe or "")
    group = raw.get("report") if isinstance(raw, dict) else None
    value = number(group.get("tolerate")) if isinstance(group, dict) else None
    return TOLERATED_DRIFT if value is None else value


def side(drifts: Iterable[Estimate], bound: float) -> Side:
    """Return the position of general drift relative to the bound; with several general sets the worst one decides.

    Args:
        drifts: general drift on each measured general set, in bits per byte.
        bound: the bound, in bits per byte.
    """
    above = [estimate.above(bound) for estimate in drifts]
    if not above:
        return Side.NOT_MEASURED
    if True in above:
        return Side.BEYOND
    return Side.UNDECIDED if None in above else Side.WITHIN
