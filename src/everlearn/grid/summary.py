"""Compute the numbers of a table from cells: means over orders and seeds, intervals, paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everlearn.comparison.intervals import Difference, difference, over_runs
from everlearn.errors import RunError, did_you_mean
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import QUANTITIES, Scores
from everlearn.grid.cells import CellResult, Moment
from everlearn.grid.during_training import asked_numbers
from everlearn.grid.pairing import Rows, Unit, aligned, compared, within
from everlearn.grid.template import Metric
from everlearn.methods.sequential import PLAIN

METRICS: tuple[Metric, ...] = ("f1", "accuracy")
BASE = "none"
"""Name of the row of the base model."""


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        numbers: numbers over all of the row's cells, with the names of :func:`numbers`.
        differences: each number minus the reference's; empty for the reference itself.
        facts: the first cell, whose facts are those of all.
        seconds: seconds of training, the median over cells, so that a cell that waited for other work has no weight.
        rows: order and seed of each cell → its numbers.
        runs: the cells. Those without an order are restricted to domains and end tasks of cells with an order.
    """

    entry: str
    title: str
    cells: int
    facts: CellResult
    numbers: dict[str, Estimate]
    seconds: float
    differences: dict[str, Difference] = field(default_factory=dict)
    rows: Rows = field(default_factory=dict)
    runs: tuple[CellResult, ...] = ()

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
            "tokens": self.facts.tokens,
        }


def numbers(cell: CellResult) -> dict[str, float]:
    """Return the numbers of one cell; those that it cannot have are absent.

    ========================  =======================================================================================
    ``f1``, ``accuracy``      A_T: mean over end tasks at the end, each the mean over its fine-tunings
    ``f1/<task>`` …           the same of one task
    ``f1_forgetting`` …       (1/(T−1)) Σ_{k<T} (A_kk − A_Tk): what the tasks of earlier domains lost (DAS, arXiv
                              2302.03241); below 0 later domains helped. Only where domains are learnt in an order
    ``accuracy_micro``        the same over all test examples together
    ``accuracy_learnt`` …     the stream of end tasks, from the whole matrix: see :func:`stream_numbers`
    ``kept``, ``pass_at_1`` … end tasks that are asked inside the stages (:func:`.along.asked`): their means
    ``bits``                  held-out bits per byte at the end, mean over domains
    ``bits_learnt``           base model − right after the own domain, mean over domains; above 0 is good
    ``bits_forgotten``        end − right after the own domain, mean over earlier domains; above 0 is bad
    ``bits_drift``            general text, end − base model; above 0 is bad
    ========================  =======================================================================================
    """
    found: dict[str, float] = {}
    earlier = cell.domains[:-1] if cell.order is not None else []
    for metric in METRICS:

        def score(task: str, moment: Moment, metric: Metric = metric) -> float | None:
            scores = cell.tasks[task].get(moment)
            values = [] if scores is None else getattr(scores, metric)
            return float(np.mean(values)) if values else None

        finals = {task: score(task, "final") for task in cell.tasks}
        known = {task: value for task, value in finals.items() if value is not None}
        _add_mean(found, metric, known.values())
        found |= {f"{metric}/{task}": value for task, value in known.items()}
        both: tuple[Moment, ...] = ("learnt", "final")
        moments = {task: {m: score(task, m) for m in both} for task in earlier if task in cell.tasks}
        lost: list[dict[Moment, float]] = [
            {m: value for m, value in each.items() if value is not None} for each in moments.values()
        ]
        _add_mean(found, f"{metric}_forgetting", _each("forgotten", lost, higher_is_better=True))
    found |= _micro(cell) | stream_numbers(cell) | asked_numbers(cell)
    own = [bits for name, bits in cell.bits_per_byte.items() if name in cell.domains]
    before = [bits for name, bits in cell.bits_per_byte.items() if name in earlier]
    general = [bits for name, bits in cell.bits_per_byte.items() if name not in cell.domains]
    _add_mean(found, "bits", [bits["final"] for bits in own])
    _add_mean(found, "bits_learnt", _each("learnt", own, higher_is_better=False))
    _add_mean(found, "bits_forgotten", _each("forgotten", before, higher_is_better=False))
    _add_mean(found, "bits_drift", _each("general_drift", general, higher_is_better=False))
    return found


STREAM = {
    "accuracy_bwt": "backward_transfer",
    "accuracy_forgetting_max": "forgotten_max",
    "accuracy_fwt": "forward_transfer",
}
"""Numbers of the stream of end tasks: quantities that are means over T − 1 tasks."""


def stream_numbers(cell: CellResult) -> dict[str, float]:
    """Return the numbers of the matrix R[i, j] of accuracies (task j after i of T tasks), where measured.

    ===========================  ===================================================================================
    ``accuracy_learnt``          (1/T) Σ_j R[j, j]: each task right after it was learnt
    ``accuracy_bwt``             (1/(T−1)) Σ_{j<T} (R[T, j] − R[j, j]): backward transfer (GEM, arXiv 1706.08840, eq. 3)
    ``accuracy_forgetting_max``  (1/(T−1)) Σ_{j<T} (max_{j≤i≤T} R[i, j] − R[T, j]) (RWalk, arXiv 1801.10112)
    ``accuracy_fwt``             (1/(T−1)) Σ_{j>1} (R[j−1, j] − R[0, j]): forward transfer (GEM, eq. 4), against the
                                 base model
    ``…_over_all``               the same sums over T: some released code divides so (SAPT); × (T−1)/T
    ===========================  ===================================================================================
    """
    if cell.accuracies is None or cell.order is None:
        return {}
    last, found = len(cell.domains), dict[str, float]()
    rows = tuple(range(last + 1))
    values = np.array(cell.accuracies.values, dtype=np.float64)  # null becomes NaN
    columns = [
        (cell.domains.index(task) + 1, Scores(rows, values[:, place]))
        for place, task in enumerate(cell.accuracies.columns)
        if task in cell.domains
    ]
    if columns:
        own = [float(scores[stage]) for stage, scores in columns]
        _add_known(found, "accuracy_learnt", own)
    for name, key in STREAM.items():
        quantity = QUANTITIES[key]
        parts = [(stage, scores) for stage, scores in columns if quantity.applies(stage, last) and stage <= last]
        if name == "accuracy_forgetting_max" and any(np.isnan(scores.array[stage:]).any() for stage, scores in parts):
            continue  # a maximum over only some of the stages would be another number
        _add_known(found, name, [float(quantity.of(scores, stage, last, True)) for stage, scores in parts])
        if name in found:
            found[f"{name}_over_all"] = found[name] * (last - 1) / last
    return found


def _micro(cell: CellResult) -> dict[str, float]:
    """Return the accuracy over all test examples, if their numbers are known."""
    finals = [moments["final"] for moments in cell.tasks.values() if "final" in moments]
    asked = [scores.examples for scores in finals]
    if not finals or not all(asked):
        return {}
    right = sum(scores.examples * float(np.mean(scores.accuracy)) for scores in finals)
    return {"accuracy_micro": right / sum(asked)}


def _add_known(found: dict[str, float], name: str, values: Sequence[float]) -> None:
    """Add the mean if all values are known."""
    if values and not any(map(math.isnan, values)):
        found[name] = float(np.mean(values))


def _each(quantity: str, moments: Iterable[Mapping[Moment, float]], higher_is_better: bool) -> list[float]:
    """Return a quantity of every task or set for which it is known."""
    values = [QUANTITIES[quantity].at(each, higher_is_better) for each in moments]
    return [value for value in values if not math.isnan(value)]


def summarise(cells: Sequence[CellResult], reference: str | None = None) -> list[Line]:
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
    entries: dict[str, list[CellResult]] = {}
    learnt = [cell for cell in cells if cell.order is not None] or cells
    for cell in cells:
        entries.setdefault(cell.entry, []).append(within(cell, learnt))
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


def _line(cells: Sequence[CellResult]) -> Line:
    first = cells[0]
    rows: Rows = {(cell.order, cell.seed): numbers(cell) for cell in cells}
    return Line(
        first.entry,
        first.title,
        len(cells),
        first,
        {name: over_runs(list(values.values())) for name, values in _columns(rows).items()},
        statistics.median(cell.seconds for cell in cells),
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


def _add_mean(found: dict[str, float], name: str, values: Iterable[float]) -> None:
    listed = list(values)
    if listed:
        found[name] = float(np.mean(listed))
