"""Define how numbers of a grid are shown: heading, unit and decimals of each, the same in tables and in figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everlearn.comparison import formatting as fmt
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.metrics import METRICS
from everlearn.evaluation.quantities import QUANTITIES
from everlearn.grid.numbers import FORGOTTEN, KEPT, NUMBERS
from everlearn.grid.summary import Line
from everlearn.report.tables import TableCell, estimate_cell

UP, DOWN = "↑", "↓"


@dataclass(frozen=True)
class NumberColumn:
    """A number of every row.

    Attributes:
        number: its name.
        title: name in tables.
        arrow: points to the better side; "" if neither is.
        scale: factor with which it is written: 100 for shares, in percent.
        places: number of decimals.
        unit: unit of a difference, and of an axis.
        signed: whether tables write its sign.
    """

    number: str
    title: str
    arrow: str = ""
    scale: float = 100
    places: int = 2
    unit: str = "points"
    signed: bool = False

    @property
    def heading(self) -> str:
        """Return the heading in a table of levels."""
        return f"{self.title} {self.arrow}".strip()

    @property
    def axis(self) -> str:
        """Return the title of an axis."""
        return f"{self.title} ({self.unit})"

    @property
    def change(self) -> bool:
        """Return whether the number is a change (so that 0 means none) rather than a level."""
        return QUANTITIES[NUMBERS.get(self.number, ("", "average"))[1]].signed

    def estimate(self, line: Line) -> Estimate:
        """Return the number of a row in this unit; empty if the row lacks it."""
        return self.scaled(line.numbers.get(self.number))

    def difference(self, line: Line) -> Estimate:
        """Return its difference to the reference in this unit; empty if there is none."""
        own = line.differences.get(self.number)
        return self.scaled(own.estimate if own else None)

    def scaled(self, estimate: Estimate | None) -> Estimate:
        """Return an estimate in this unit."""
        ends = (estimate.value, estimate.low, estimate.high) if estimate is not None else ()
        return Estimate(*(None if value is None else self.scale * value for value in ends))

    def cell(self, line: Line) -> TableCell:
        """Return the cell of a row: the number with its interval, "–" if it is unknown."""
        return estimate_cell(self.estimate(line), self.places, self.signed)

    def difference_cell(self, line: Line) -> TableCell:
        """Return the cell of a row's difference to the reference, with its p-value."""
        shown, own = estimate_cell(self.difference(line), self.places, True), line.differences.get(self.number)
        return replace(shown, detail=f"{shown.detail} {fmt.p_value(own.p_value if own else None)}".strip())


def known(columns: Iterable[NumberColumn], lines: Sequence[Line]) -> list[NumberColumn]:
    """Return the columns for which at least one row has a number."""
    return [column for column in columns if any(column.number in line.numbers for line in lines)]


def of_metric(metric: str) -> tuple[NumberColumn, NumberColumn]:
    """Return the columns of a metric of end tasks: the mean at the end, and forgetting."""
    title = METRICS[metric].title
    return NumberColumn(metric, title, UP), NumberColumn(f"{metric}_forgetting", f"{title} forgetting", DOWN)


STREAM = (
    NumberColumn("accuracy_learnt", "Just learnt", UP),
    NumberColumn("accuracy", "AP (macro)", UP),
    NumberColumn("accuracy_micro", "Micro", UP),
    NumberColumn("accuracy_bwt", "BWT, T−1", UP),
    NumberColumn("accuracy_bwt_over_all", "BWT, T", UP),
    NumberColumn("accuracy_forgetting", "Forgetting, T−1", DOWN),
    NumberColumn("accuracy_forgetting_max", "Forgetting, max form, T−1", DOWN),
    NumberColumn("accuracy_forgetting_max_over_all", "Forgetting, max form, T", DOWN),
    NumberColumn("accuracy_fwt", "FWT, T−1", UP),
    NumberColumn("accuracy_fwt_over_all", "FWT, T", UP),
)
"""Columns for the accuracy of end tasks over the stream."""
ALONG = (
    NumberColumn(KEPT, "Tasks of no domain", UP),
    NumberColumn(FORGOTTEN, "Forgotten of them", DOWN),
    NumberColumn("pass_at_1", "pass@1", UP),
)
"""Columns for end tasks that are scored during training."""


def _of_text(number: str) -> NumberColumn:
    quantity = QUANTITIES[NUMBERS[number][1]]
    arrow = UP if quantity.higher_is_better else DOWN  # a level in bits per byte is better if it is lower
    return NumberColumn(number, quantity.title, arrow, 1, 4, "bits per byte", quantity.signed)


BITS = tuple(map(_of_text, ("bits", "bits_learnt", "bits_forgotten", "bits_drift")))
"""Columns for held-out text."""
