"""Compute the rows of a grid's tables: means over orders and seeds, intervals, paired differences."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from everlearn.comparison.intervals import Difference, difference, over_runs
from everlearn.comparison.pairs import Rows, Unit, aligned, compared, unit_of, within
from everlearn.comparison.replicates import Pool
from everlearn.comparison.runs import Run
from everlearn.errors import RunError, did_you_mean
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.results import GridCell
from everlearn.grid.arrangements import BASE
from everlearn.grid.numbers import numbers
from everlearn.methods.sequential import PLAIN


@dataclass(frozen=True)
class Line(Pool):
    """A row of the table: cells of one row of the grid, in one or more orders with one or more seeds.

    Cells without an order are restricted to domains and end tasks of cells with an order.

    Attributes:
        differences: each number minus the reference's; empty for the reference itself.
    """

    differences: dict[str, Difference] = field(default_factory=dict)

    @property
    def facts(self) -> GridCell:
        """Return the row's name, title, paper and costs, which every cell records; those of the first cell."""
        return self.runs[0].grid

    @property
    def entry(self) -> str:
        """Return the name of the row."""
        return self.facts.row

    @property
    def seeds(self) -> list[str]:
        """Return the order and seed of each cell as texts, by which cells of two rows are paired."""
        return [f"order {order}, seed {seed}" for order, seed in map(unit_of, self.runs)]

    @cached_property
    def rows(self) -> Rows:
        """Return the numbers of each cell, by its order and seed."""
        return {unit_of(cell): numbers(cell) for cell in self.runs}

    @cached_property
    def numbers(self) -> dict[str, Estimate]:
        """Return the numbers over all cells, with the names of :func:`everlearn.grid.numbers.numbers`."""
        return {name: over_runs(list(values.values())) for name, values in _columns(self.rows).items()}

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the first cell was trained on."""
        return self.runs[0].tokens

    @property
    def seconds(self) -> float:
        """Return the median over cells of the seconds of training, so that a cell that had to wait does not count."""
        return statistics.median(cell.training_seconds for cell in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        return {
            "entry": self.entry,
            "title": self.label,
            "cells": len(self.runs),
            "numbers": {name: vars(estimate) for name, estimate in self.numbers.items()},
            "differences": {
                name: {**vars(change.estimate), "p_value": change.p_value, "pairs": change.pairs}
                for name, change in self.differences.items()
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
        RunError: there are no cells, or the reference has no cell.
    """
    if not cells:
        raise RunError("There are no results yet: run the command without `--show` first.")
    cells_of: dict[str, list[Run]] = {}
    ordered = [cell for cell in cells if cell.grid.order is not None] or cells
    for cell in cells:
        cells_of.setdefault(cell.grid.row, []).append(within(cell, ordered))
    if reference is not None and reference not in cells_of:
        raise RunError(f"`--reference` is '{reference}', which has no results.{did_you_mean(reference, cells_of)}")
    lines = {name: Line(own[0].grid.title, tuple(own)) for name, own in cells_of.items()}
    against = lines[reference or plain_or_first(lines)]
    for line in lines.values():
        if line is not against:
            line.differences.update(differences(*compared(line.runs, against.runs, numbers, single=True)))
    return list(lines.values())


def plain_or_first(entries: Iterable[str]) -> str:
    """Return the default reference: plain training, the base model, or the first row."""
    listed = list(entries)
    return next(name for name in (PLAIN, BASE, *listed) if name in listed)


def differences(ours: Rows, reference: Rows) -> dict[str, Difference]:
    """Return the difference a − b of each number that both sides have."""
    sides = [_columns(side) for side in aligned(ours, reference, single=True)]
    return {name: difference(values, sides[1][name]) for name, values in sides[0].items() if name in sides[1]}


def _columns(rows: Rows) -> dict[str, dict[Unit, float]]:
    """Return for each number of the rows its values, by order and seed."""
    columns: dict[str, dict[Unit, float]] = {}
    for unit, row in rows.items():
        for name, value in row.items():
            columns.setdefault(name, {})[unit] = value
    return columns
