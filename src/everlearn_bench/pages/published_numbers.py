"""The published numbers of a suite's paper beside a grid's own."""

from __future__ import annotations

from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.evaluation.estimate import Estimate
from everlearn.grid.columns import NumberColumn
from everlearn.grid.numbers import FORGOTTEN, KEPT
from everlearn.grid.parts import GridContents, GridPart, grid_part
from everlearn.grid.rows import entry_of, in_order
from everlearn.report.tables import Table, TableCell, estimate_cell
from everlearn_bench.suites import Published, Suite

BESIDE = {
    "f1": "F1", "accuracy": "accuracy", "f1_forgetting": "F1 forgetting", "accuracy_forgetting": "accuracy forgetting",
}  # fmt: skip
BESIDE_ALONG = {KEPT: "mean of tasks of no domain", FORGOTTEN: "forgotten of it", "pass_at_1": "pass@1"}
"""Measured numbers that are shown beside published ones: number → heading."""


@grid_part("published numbers")
def published_numbers(shown: GridContents) -> GridPart | None:
    """Return the table of a suite's published numbers beside those measured here; None if none can be compared."""
    template = shown.template
    if not isinstance(template, Suite) or template.published is None or not (shown.tasks or shown.asked_along):
        return None
    return PublishedNumbers(shown, template.published)


@dataclass
class PublishedNumbers(GridPart):
    """Part of a grid's page: a table with a row for each published or measured row."""

    shown: GridContents
    published: Published

    def last_tables(self) -> list[Table]:
        """Return the table."""
        published, template = self.published, self.shown.template
        mine = published.beside or tuple((name, None) for name in (BESIDE if self.shown.tasks else BESIDE_ALONG))
        lines = {line.entry: line for line in self.shown.lines}

        def ours(entry: str, name: str, order: int | None) -> TableCell:
            column = NumberColumn(name, name)
            if entry not in lines or order is None:
                return estimate_cell(column.estimate(lines[entry]) if entry in lines else Estimate(), column.places)
            rows = [row[name] for (own, _), row in lines[entry].rows.items() if own in (None, order) and name in row]
            return estimate_cell(column.scaled(Estimate(sum(rows) / len(rows)) if rows else None), column.places)

        rows = []
        for entry in in_order({*published.rows, *lines}, template):
            published_row = published.rows.get(entry, (None,) * len(published.columns))
            own = (ours(entry, name, order) for name, order in mine)
            cells = [*(TableCell(fmt.fixed(value, 2)) for value in published_row), *own]
            rows.append((lines[entry].label if entry in lines else entry_of(entry, template).title, tuple(cells)))
        header = ("Method", *(f"published: {name}" for name in published.columns))
        words = BESIDE | BESIDE_ALONG
        here = [f"here: {words[name]}" + (f", order {order}" if order is not None else "") for name, order in mine]
        return [Table(f"Beside {published.title}", (*header, *here), tuple(rows), published.caption)]
