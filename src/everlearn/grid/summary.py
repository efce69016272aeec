"""Compute the rows of a grid's tables: means over orders and seeds, intervals, paired differences."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everlearn.comparison.intervals import Difference, difference, over_runs
from everlearn.comparison.pairs import Rows, Unit, aligned, compared, unit_of, within
from everlearn.comparison.runs import Run
from everlearn.errors import RunError, did_you_mean
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.results import GridCell
from everlearn.grid.arrangements import BASE
from everlearn.grid.numbers import numbers
from everlearn.methods.sequential import PLAIN


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        numbers: numbers over all of the row's cells, with the names of :func:`numbers`.
        differences: each number minus the reference's; empty for the reference itself.
        facts: the group `grid` of the first cell, which is that of all.
        tokens: tokens that the first cell was trained on.
        seconds: seconds of training, the median over cells, so that a cell that waited for other work has no weight.
        rows: order and seed of each cell → its numbers.
        runs: the cells. Those without an order are restricted to domains and end tasks of cells with an order.
    """

    entry: str
    title: str
    cells: int
    facts: GridCell
    numbers: dict[str, Estimate]
    tokens: int
    seconds: float
    differences: dict[str, Difference] = field(default_factory=dict)
    rows: Rows = field(default_factory=dict)
    runs: tuple[Run, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return {
            "entry": self.entry,
            "title": self.title,
            "cells": self.cells,
            "numbers": {name: vars(found) for name, found in self.numbers.items()},
            "differences": {
                name: {**vars(found.estimate), "p_value": found.p_value, "pairs": found.pairs}
                for name, found in self.differences.items()
            },
            "domain_id_at_test": self.facts.domain_id_at_test,
            "old_data": self.facts.old_data,
            "parameters": self.facts.parameters,
            "passes_per_step": self.facts.passes_per_step,
            "seconds": self.seconds,
            "tokens": self.tokens,
        }


def summarise(cells: Sequence[Run], reference: str | None = None) -> list[Line]:
    """Return a line for each row, in the order in which rows first occur.

    Intervals are over the row's cells (orders × seeds), by Student's t (:mod:`everlearn.comparison.intervals`): they
    show how much other orders and seeds could change the mean. Differences pair cells of the same order and seed; if
    one side does not depend on the order, the other is first averaged over its orders. A cell without an order (the
    base model) can have more domains and end tasks than the orders that were run: its means are restricted to theirs.

    Args:
        cells: cells of one grid.
        reference: row with which the others are compared. Default: plain training, else the base model, else the
            first row.

    Raises:
        RunError: there are no cells, or none of the reference.
    """
    if not cells:
        raise RunError("There is no result yet: make some first, without `--show`.")
    entries: dict[str, list[Run]] = {}
    learnt = [cell for cell in cells if cell.grid.order is not None] or cells
    for cell in cells:
        entries.setdefault(cell.grid.row, []).append(within(cell, learnt))
    if reference is not None and reference not in entries:
        raise RunError(
            f"`--reference` is '{reference}', of which there is no result.{did_you_mean(reference, entries)}"
        )
    against = reference or plain_or_first(entries)
    lines = {name: _line(found) for name, found in entries.items()}
    for name, line in lines.items():
        if name != against:
            line.differences.update(differences(*compared(line.runs, lines[against].runs, numbers, single=True)))
    return list(lines.values())


def plain_or_first(entries: Iterable[str]) -> str:
    """Return the default reference: plain training, the base model, or the first row."""
    listed = list(entries)
    return next(name for name in (PLAIN, BASE, *listed) if name in listed)


def _line(cells: Sequence[Run]) -> Line:
    first = cells[0]
    rows: Rows = {unit_of(cell): numbers(cell) for cell in cells}
    return Line(
        first.grid.row,
        first.grid.title,
        len(cells),
        first.grid,
        {name: over_runs(list(values.values())) for name, values in _columns(rows).items()},
        first.tokens,
        statistics.median(cell.training_seconds for cell in cells),
        rows=rows,
        runs=tuple(cells),
    )


def differences(ours: Rows, theirs: Rows) -> dict[str, Difference]:
    """Return the difference a − b of each number that both sides have."""
    sides = [_columns(side) for side in aligned(ours, theirs, single=True)]
    return {name: difference(values, sides[1][name]) for name, values in sides[0].items() if name in sides[1]}


def _columns(rows: Rows) -> dict[str, dict[Unit, float]]:
    """Return number → its values by order and seed, in the order of the rows that have it."""
    found: dict[str, dict[Unit, float]] = {}
    for unit, row in rows.items():
        for name, value in row.items():
            found.setdefault(name, {})[unit] = value
    return found
