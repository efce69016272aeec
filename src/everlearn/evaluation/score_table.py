"""Define the table of one metric's scores: R[i, c], the score of column c after i domains, where measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from everlearn.evaluation.estimate import Estimate, number
from everlearn.evaluation.quantities import MEAN, QUANTITIES, Quantity, Scores

Number = Annotated[float, Field(allow_inf_nan=False)]
_UNKNOWN = Estimate()


Score = Annotated[
    tuple[str, str, Number, Number | None, Number | None],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
"""A measured score: label of the row, column, value, lower and upper end of its 95 % interval (null if unknown)."""


class ScoreTable(BaseModel):
    """One metric's scores: checkpoints (rows) on held-out sets or end tasks (columns).

    Only measured scores are kept, so that the size grows with the number of measurements.
    """

    model_config = ConfigDict(extra="forbid")

    title: str = ""
    """Name of the metric in tables."""
    higher_is_better: bool
    """False for losses."""
    unit: str
    """Unit of the values."""
    rows: list[str]
    """Labels: ``base``, then the domain learnt last; or names of existing checkpoints."""
    columns: list[str]
    """Names of held-out sets or end tasks."""
    task_domains: dict[str, str | None] | None = None
    """End tasks only: the domain of each task; null for a general task."""
    learnt_at: dict[str, str | None] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Column of a domain → the row after which that domain has just been learnt, where rows are not called after
    domains; null if there is no such row."""
    cells: list[Score]
    """Scores, ordered by row and then by column."""

    @model_validator(mode="after")
    def _places(self) -> ScoreTable:
        rows, columns = set(self.rows), set(self.columns)
        for row, column, *_ in self.cells:
            if row not in rows or column not in columns:
                raise ValueError(f"`cells` has a score of '{column}' at '{row}', which is no row or column")
        return self

    @classmethod
    def lenient(cls, metric: str, raw: Mapping[str, Any]) -> ScoreTable:
        """Read a table that another program or version may have written; invalid values are absent."""
        known = set(rows := [str(row) for row in raw.get("rows") or []])
        cells = [cell for cell in raw.get("cells") or [] if isinstance(cell, list | tuple) and len(cell) == 5]
        return cls.model_construct(
            title=str(raw.get("title") or metric.replace("_", " ").capitalize()),
            higher_is_better=bool(raw.get("higher_is_better")),
            unit=str(raw.get("unit") or ""),
            rows=rows,
            columns=[str(column) for column in raw.get("columns") or []],
            task_domains=dict(raw.get("task_domains") or {}),
            learnt_at=dict(raw["learnt_at"]) if isinstance(raw.get("learnt_at"), Mapping) else None,
            cells=[(str(row), str(column), *ends) for row, column, *ends in cells if str(row) in known],
        )

    @property
    def printed_unit(self) -> str:
        """Return the unit beside numbers; fractions are written without one."""
        return "" if self.unit == "fraction" else self.unit

    @cached_property
    def scores(self) -> dict[tuple[int, str], Estimate]:
        """Return the scores with their intervals, by number of the row and column."""
        place = {label: position for position, label in enumerate(self.rows)}
        return {(place[row], column): Estimate(*map(number, score)) for row, column, *score in self.cells}

    def cell(self, row: int, column: str) -> Estimate:
        """Return R[row, column] with its interval; row 0 is the base model, -1 the end of the stream."""
        return self.scores.get((row if row >= 0 else row + len(self.rows), column), _UNKNOWN)

    def estimates(self) -> dict[tuple[str, str], Estimate]:
        """Return the scores with their intervals, by row and column."""
        return {(row, column): Estimate(*score) for row, column, *score in self.cells}

    def dense(self, part: Literal["value", "low", "high"] = "value") -> list[list[float | None]]:
        """Return one part of the scores as [rows][columns], with None where nothing was measured."""
        return [[getattr(self.cell(row, column), part) for column in self.columns] for row in range(len(self.rows))]

    @property
    def values(self) -> list[list[float | None]]:
        """Return the scores as [rows][columns]."""
        return self.dense()

    def own_stage(self, column: str) -> int | None:
        """Return the row after which a column's domain has just been learnt; None for general sets and later stages.

        It is 0 for a domain without a row of its own, for example if all domains were learnt together.
        """
        if self.learnt_at is None:
            return self._stages.get((self.task_domains or {}).get(column, column))
        row = self.learnt_at.get(column)
        return (0 if row is None else self.rows.index(row)) if column in self.learnt_at else None

    @cached_property
    def _stages(self) -> dict[str | None, int]:
        return {domain: stage for stage, domain in enumerate(self.rows) if stage}

    def worsening(self, column: str, since: int, row: int) -> float | None:
        """Return how much worse a column is after `row` than after `since`; positive is worse for every metric."""
        before, after = self.cell(since, column).value, self.cell(row, column).value
        if before is None or after is None:
            return None
        return before - after if self.higher_is_better else after - before

    def each(self, quantity: Quantity) -> dict[str, float]:
        """Compute a quantity, such as forgetting, for each column that it applies to; NaN where a score is missing.

        If the order of the domains is unknown (`learnt_at`), no domain counts as forgotten.
        """
        last, values = len(self.rows) - 1, dict[str, float]()
        for column in self.columns:
            stage = self.own_stage(column)
            if quantity.applies(stage, last if self.learnt_at is None or stage is None else stage):
                values[column] = float(quantity.of(self._measured[column], stage, last, self.higher_is_better))
        return values

    @cached_property
    def _measured(self) -> dict[str, Scores]:
        """Return the scores of each column by row."""
        known: dict[str, dict[int, float]] = {column: {} for column in self.columns}
        for (row, column), score in self.scores.items():
            if score.value is not None and column in known:
                known[column][row] = score.value
        return {column: Scores(tuple(own), np.array(list(own.values()), float)) for column, own in known.items()}

    @cached_property
    def derived(self) -> dict[str, dict[str, Estimate]]:
        """Return every quantity computed from the scores, without intervals, for files that lack one."""
        estimates: dict[str, dict[str, Estimate]] = {}
        for key, quantity in QUANTITIES.items():
            values = self.each(quantity) if quantity.recorded and quantity.of_metric is None else {}
            known = {column: Estimate(value) for column, value in values.items() if math.isfinite(value)}
            estimates[key] = known if quantity.columns else {}
            if quantity.averaged and values and len(known) == len(values):
                estimates[key][MEAN] = Estimate(float(np.mean(list(values.values()))))
        return estimates
