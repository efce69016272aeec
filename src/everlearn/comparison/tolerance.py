"""The bound on general drift: what general text may lose in a run that is worth taking, and who keeps to it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import yaml

from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import Estimate, number
from everlearn.evaluation.quantities import TOLERATED_DRIFT

METRIC, KEY = "bits_per_byte", "general_drift"


class Side(StrEnum):
    """Where a run's general drift lies."""

    WITHIN = "within"
    BEYOND = "beyond"
    UNDECIDED = "undecided"
    """The interval includes the bound, or there is none."""
    NOT_MEASURED = "not measured"


def tolerance_of(runs: Iterable[Run]) -> float:
    """Return the bound that the runs' recipes set (``report.tolerate``): the lowest, where they differ."""
    return min(_own(run) for run in runs)


def _own(run: Run) -> float:
    try:
        raw = yaml.load(run.recipe or "", getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:  # a damaged recipe costs the setting, not the report
        raw = None
    group = raw.get("report") if isinstance(raw, dict) else None
    value = number(group.get("tolerate")) if isinstance(group, dict) else None
    return TOLERATED_DRIFT if value is None else value


def side(drifts: Iterable[Estimate], bound: float) -> Side:
    """Return where general drift lies; of several general sets the worst decides.

    Args:
        drifts: general drift in bits per byte on each general set that was measured.
        bound: in bits per byte.
    """
    above = [estimate.above(bound) for estimate in drifts]
    if not above:
        return Side.NOT_MEASURED
    if True in above:
        return Side.BEYOND
    return Side.UNDECIDED if None in above else Side.WITHIN
