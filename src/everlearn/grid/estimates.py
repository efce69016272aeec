"""Estimate how long the missing cells of a grid will take, from a few training steps of each kind of cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from everlearn.commands.plan import Plan, make_plan
from everlearn.config.recipe import Recipe
from everlearn.data.blocks import hash_of
from everlearn.errors import EverlearnError
from everlearn.grid.grid import Grid, GridRun, State, completeness
from everlearn.report.tables import Table, TableCell
from everlearn.wording import duration

SAME_SPEED = ("learning_rate", "weight_decay", "warmup_steps", "lr_scheduler_type")
"""Training arguments that do not change the time of a step."""


@dataclass(frozen=True)
class CellEstimate:
    """A cell of a grid with its estimated time.

    Attributes:
        cell: name of the cell.
        state: state of the cell.
        low: seconds, from the fastest measured step; 0 if the cell is already measured.
        high: seconds, from the slowest step.
    """

    cell: str
    state: str
    low: float = 0.0
    high: float = 0.0

    @property
    def seconds(self) -> str:
        """Return the time in words."""
        return between(self.low, self.high) if self.high else ""


@dataclass(frozen=True)
class DryRun:
    """What a grid would do.

    Attributes:
        states: state of every cell.
        cells: the cells with estimated times.
    """

    states: Sequence[State]
    cells: Sequence[CellEstimate]

    def table(self) -> Table:
        """Return the cells with their times, and the total."""
        low, high = self.total
        rows = [(each.cell, (TableCell(each.state), TableCell(each.seconds))) for each in self.cells]
        rows.append(("All that is missing", (TableCell(""), TableCell(between(low, high) if high else "nothing"))))
        return Table(
            completeness(self.states),
            ("Run", "State", "Time, about"),
            tuple(rows),
            "Time for training and evaluating the runs one after another on this machine, as `everlearn plan` "
            "estimates it. Reading text and scoring the base model happen once and are not included.",
        )

    @property
    def total(self) -> tuple[float, float]:
        """Return the seconds of all missing cells, at least and at most."""
        return sum(each.low for each in self.cells), sum(each.high for each in self.cells)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data, with times in seconds."""
        low, high = self.total
        return {"cells": [asdict(each) for each in self.cells], "low": low, "high": high}


def between(low: float, high: float) -> str:
    """Write a span of seconds in words."""
    return duration(high) if duration(low) == duration(high) else f"{duration(low)} to {duration(high)}"


def estimate(grid: Grid) -> DryRun:
    """Estimate the time of every missing cell of a grid; only a few steps are trained, and discarded.

    Raises:
        EverlearnError: a cell cannot be made; the message names its row.
    """
    plans: dict[str, Plan] = {}
    states, cells = grid.states(), []
    for cell, state in zip(grid.cells, states, strict=True):
        if state.state == "done":
            cells.append(CellEstimate(cell.name, state.state))
            continue
        recipe = grid.recipe(cell, grid.runs / cell.name / "run")
        kind = _kind(recipe)
        if kind not in plans:
            grid.reporter.cell = cell.entry.name
            try:
                plans[kind] = make_plan(recipe, reporter=grid.reporter)
            except EverlearnError as error:
                raise type(error)(f"{cell.entry.name}: {error}") from None
        cells.append(CellEstimate(cell.name, state.state, *_seconds(cell, plans[kind])))
    return DryRun(states, cells)


def _kind(recipe: Recipe) -> str:
    """Return a hash that is equal for cells of the same duration: order, seed and learning rate are left out."""
    raw = recipe.model_dump(mode="json", exclude={"run"})
    raw["train"] = {key: value for key, value in raw["train"].items() if key not in SAME_SPEED}
    raw["domains"] = sorted(map(repr, raw["domains"]))
    return hash_of(repr(raw))


def _seconds(cell: GridRun, plan: Plan) -> tuple[float, float]:
    """Return the seconds of a cell, at least and at most; a row without a seed trains nothing."""
    measuring = plan.evaluation.seconds or 0.0
    if not cell.entry.seeded or plan.protected is None:
        share = measuring / (len(plan.domains) + 1)
        return share, share
    return plan.protected.low + measuring, plan.protected.high + measuring
