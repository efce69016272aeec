"""A grid of long streams as the causal study counts it: transfer by order, and whether late stages forget more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from everlearn.benchmarking.cells import CellResult
from everlearn.benchmarking.summary import estimate
from everlearn.benchmarking.transfer import stream_of, transfer
from everlearn.evaluation.saturation import SaturationByGap, long_enough, saturation
from everlearn.report import formatting as fmt
from everlearn.report.drawing import SERIES
from everlearn.report.figures.heat import Heat, Shade, heat
from everlearn.report.figures.registry import Plate
from everlearn.report.figures.saturation import at_equal_gaps
from everlearn.report.tables import Table, TableCell
from everlearn.report.transfer import saturation_rows
from everlearn.suites import Suite
from everlearn.suites.claims import Number
from everlearn.suites.m2d2.claims import ALONE

OVER_ALONE = "continual_over_dapt"
UNIT = "bits/byte"
_MEASURES: tuple[Number, ...] = ("continual", "lc", "fg", "backward", "forward")
_COLUMNS = {
    "continual": "CPT against ZS ↑",
    OVER_ALONE: "CPT against DAPT ↑",
    "lc": "LC against ZS ↑",
    "fg": "FG ↓",
    "backward": "Backward ↑",
    "forward": "Forward ↑",
}


class LongStreams:
    """Cells whose streams are long enough to ask whether late stages forget more.

    Args:
        suite: names the orders.
        cells: of one grid; the short ones, and those of no order, are left out.
    """

    def __init__(self, suite: Suite, cells: Sequence[CellResult]) -> None:
        self._alone = {cell.seed: cell for cell in cells if cell.entry == ALONE}
        self._groups: dict[str, list[CellResult]] = {}
        self._entries: dict[str, list[CellResult]] = {}
        for cell in cells:
            if cell.order is None or not long_enough(len(cell.domains)) or stream_of(cell) is None:
                continue
            self._groups.setdefault(f"{cell.title}, order {suite.order_title(cell.order)}", []).append(cell)
            self._entries.setdefault(cell.title, []).append(cell)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def tables(self) -> list[Table]:
        """Transfer, and forgetting by position; nothing without long streams."""
        return [self._transfer(), self._saturation()] if self else []

    def plates(self) -> Iterator[Plate]:
        """The score matrix, then forgetting by gap, each a picture for each entry and order."""
        for label, cells in list(self._groups.items())[:SERIES]:
            yield from heat(_scores(label, cells))
        for label, found in list(self._saturations.items())[:SERIES]:
            yield from at_equal_gaps(label, found, UNIT)

    def _transfer(self) -> Table:
        # The other measures are of a stream.
        alone = [{"continual": _means(cell, None)["continual"]} for cell in self._alone.values()]
        rows = [(label, self._cells([self._measured(cell) for cell in own])) for label, own in self._groups.items()]
        if alone:
            title = next(iter(self._alone.values())).title
            rows.append((f"{title} (DAPT)", self._cells(alone)))
        return Table(
            f"Transfer ({UNIT})",
            ("Method, order", *_COLUMNS.values()),
            tuple(rows),
            "Differences of log-perplexities, means over domains. ZS: the base model; CPT: right after the domain; "
            "DAPT: after that domain alone, of the same seed; LC: the last checkpoint; FG: lost from CPT to LC. "
            "Backward: over all later checkpoints, forward: over all before the own stage, both against ZS. In "
            "brackets: 95 % bootstrap intervals over seeds.",
        )

    def _measured(self, cell: CellResult) -> dict[str, float]:
        return _means(cell, self._alone.get(cell.seed))

    def _cells(self, runs: Sequence[dict[str, float]]) -> tuple[TableCell, ...]:
        cells = []
        for name in _COLUMNS:
            values = [run[name] for run in runs if name in run]
            if not values:
                cells.append(TableCell(fmt.MISSING))
                continue
            found = estimate(values, name)
            cells.append(TableCell(fmt.fixed(found.value, 3, signed=True), fmt.interval(found, 3, signed=True)))
        return tuple(cells)

    @cached_property
    def _saturations(self) -> dict[str, SaturationByGap]:
        """Entry and order, seeds together, then each entry with several orders together, to what they say."""
        together = dict(self._groups)
        for title, cells in self._entries.items():
            orders = {cell.order for cell in cells}
            if len(orders) > 1 and len({frozenset(cell.domains) for cell in cells}) == 1:
                together[f"All {len(orders)} orders of {title}"] = cells
        streams = {
            label: [stream for cell in own if (stream := stream_of(cell)) is not None]
            for label, own in together.items()
        }
        return {label: found for label, own in streams.items() if (found := saturation(own)) is not None}

    def _saturation(self) -> Table:
        return saturation_rows(self._saturations, UNIT)


def _scores(label: str, cells: Sequence[CellResult]) -> Heat:
    """Bits per byte of each text after each domain, means over seeds, coloured by the change since the base model."""
    found = [cell.matrix for cell in cells if cell.matrix is not None]
    rows, columns = found[0].rows, found[0].columns
    same = [np.array(each.values, float) for each in found if (each.rows, each.columns) == (rows, columns)]
    values = np.mean(same, axis=0)
    changes = values - values[0]
    shades = [
        [
            Shade(
                None if np.isnan(changes[i, j]) else float(changes[i, j]),
                "" if np.isnan(value) else fmt.fixed(float(value), 3),
                own=column == row,
            )
            for j, (column, value) in enumerate(zip(columns, values[i], strict=True))
        ]
        for i, row in enumerate(rows)
    ]
    of = f"{UNIT} of each text after each domain"
    seeds = f"mean of {len(same)} seeds" if len(same) > 1 else f"seed {cells[0].seed}"
    return Heat(f"{label}: {of}, {seeds}", "after", columns, list(zip(rows, shades, strict=True)))


def _means(cell: CellResult, alone: CellResult | None) -> dict[str, float]:
    """The measures of a cell, each the mean over the domains that have it."""
    each: dict[str, dict[str, float]] = {name: transfer(cell, name) for name in _MEASURES}
    if alone is not None:
        theirs = transfer(alone, "continual")
        each[OVER_ALONE] = {d: own - theirs[d] for d, own in each["continual"].items() if d in theirs}
    return {name: float(np.mean(list(values.values()))) for name, values in each.items() if values}
