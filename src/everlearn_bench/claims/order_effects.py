"""Compute the effect of a domain's position: of the order, and the first two domains against the last two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from everlearn.comparison import formatting as fmt
from everlearn.comparison.runs import Run
from everlearn.evaluation.quantities import QUANTITIES, Quantity
from everlearn.grid.numbers import BITS, each
from everlearn.grid.parts import GridContents, GridPart, grid_part
from everlearn.grid.rows import in_order
from everlearn.grid.template import GridTemplate
from everlearn.report.tables import Table, TableCell
from everlearn_bench.claims.judge import parts
from everlearn_bench.suites.claims import Number

ENDS = 2
"""Domains at either end of the stream."""
SINCE = replace(QUANTITIES["learnt"], key="since_learnt", formula=lambda u, j, last: u[last] - u[j])
"""What a domain has gained since its own stage; 0 for the last one."""
_Column = tuple[str, Callable[[Run], float | None]]


@dataclass
class OrderEffects(GridPart):
    """The tables of both analyses."""

    effects: list[Table]

    def tables(self) -> list[Table]:
        """Return both tables."""
        return self.effects


@grid_part("order effects")
def order_effects(shown: GridContents) -> GridPart | None:
    """Return the part on the effect of a domain's position; None if no run of the grid has an order."""
    tables = effect_tables(shown.cells, shown.template)
    return OrderEffects(tables) if tables else None


def effect_tables(cells: Sequence[Run], template: GridTemplate) -> list[Table]:
    """Return both analyses, of end tasks if there are any, else of held-out text; empty without a run in an order.

    One domain has no order, one run of each row has no spread, and of fewer than four domains the first two and the
    last two overlap.
    """
    entries = in_order({cell.grid.row for cell in cells}, template)
    ordered = sorted(
        (cell for cell in cells if cell.grid.order is not None), key=lambda cell: entries.index(cell.grid.row)
    )
    if all(len(cell.domains) < 2 for cell in ordered):
        return []
    metrics = [each for each in template.metrics if each in ("f1", "accuracy")]
    if any(parts(cell, metric) for cell in ordered for metric in metrics):
        lead: Number = next((each for each in metrics if any(parts(cell, each) for cell in ordered)), metrics[0])
        word = {"f1": "F1", "accuracy": "accuracy"}[lead]
        lost: Number = "f1_forgetting" if lead == "f1" else "accuracy_forgetting"
        shown: list[tuple[Number, str]] = [(lead, f"average {word} (points)"), (lost, f"{word} forgetting (points)")]
    else:
        shown = [("bits", "bits per byte at the end"), ("bits_forgotten", "bits per byte forgotten")]
    several = len(ordered) > len({cell.grid.row for cell in ordered})
    tables = [order_table(ordered, number, title) for number, title in shown] if several else []
    unit = {"f1": "F1, points", "accuracy": "accuracy, points", "bits": "bits per byte"}[shown[0][0]]
    if any(len(cell.domains) < 2 * ENDS for cell in ordered):
        return tables  # the first and the last would be partly the same
    return [*tables, ends_table(ordered, shown[0][0], unit)]


def order_table(cells: Sequence[Run], number: Number, title: str) -> Table:
    """Make a table of row × order: the mean over seeds, and its spread over orders and over seeds.

    Args:
        cells: cells with an order.
        number: the number to show.
        title: its name.
    """
    orders = sorted({order for cell in cells if (order := cell.grid.order) is not None})
    scale, places = _scale(number)
    rows = []
    for name, own in _entries(cells):
        by_order: dict[int, list[float]] = {}
        for cell in own:
            values = list(parts(cell, number).values())
            if values and cell.grid.order is not None:
                by_order.setdefault(cell.grid.order, []).append(scale * float(np.mean(values)))
        means = {order: float(np.mean(values)) for order, values in by_order.items()}
        within = [float(np.var(values, ddof=1)) for values in by_order.values() if len(values) > 1]
        between = float(np.std(list(means.values()), ddof=1)) if len(means) > 1 else None
        spread = float(np.sqrt(np.mean(within))) if within else None
        row_cells = [TableCell(fmt.fixed(means.get(order), places), _runs(by_order.get(order, []))) for order in orders]
        rows.append((name, (*row_cells, TableCell(fmt.fixed(between, places)), TableCell(fmt.fixed(spread, places)))))
    caption = (
        "Means over seeds, with the number of runs in brackets. The spread over orders is the standard deviation of "
        "these means; the spread over seeds is that of single runs within an order. With n seeds per order, chance "
        "alone spreads the means over orders by the spread over seeds divided by √n."
    )
    if len(orders) == 1:
        caption = f"One order only so far ({orders[0]}), so the effect of the order is unknown. {caption}"
    header = ("Method", *(f"order {order}" for order in orders), "spread over orders", "spread over seeds")
    return Table(f"Effect of the order: {title}", header, tuple(rows), caption)


def ends_table(cells: Sequence[Run], number: Number, unit: str) -> Table:
    """Compare the first two domains with the last two: end score, gain over the base model, change since learnt.

    Args:
        cells: cells with an order.
        number: ``f1``, ``accuracy`` or ``bits``.
        unit: unit of the numbers, for the title.
    """
    scale, places = _scale(number)

    def at(cell: Run, names: Sequence[str], quantity: Quantity) -> float | None:
        values = _values(cell, number, quantity)
        scores = [values[name] for name in names if name in values]
        return scale * float(np.mean(scores)) if scores else None

    def first(cell: Run) -> list[str]:
        return cell.domains[:ENDS]

    def last(cell: Run) -> list[str]:
        return cell.domains[-ENDS:]

    columns: list[_Column] = [
        ("at the end, first two", lambda cell: at(cell, first(cell), QUANTITIES["average"])),
        ("at the end, last two", lambda cell: at(cell, last(cell), QUANTITIES["average"])),
        ("over the base, first two ↑", lambda cell: at(cell, first(cell), QUANTITIES["gained"])),
        ("over the base, last two ↑", lambda cell: at(cell, last(cell), QUANTITIES["gained"])),
        ("since learnt, first two ↑", lambda cell: at(cell, first(cell), SINCE)),
        ("since learnt, last two ↑", lambda cell: at(cell, last(cell), SINCE)),
    ]
    rows = []
    for name, own in _entries(cells):
        row_cells = []
        for position, (_, value) in enumerate(columns):
            values = [each for each in map(value, own) if each is not None]
            spread = f"± {fmt.fixed(float(np.std(values, ddof=1)), places)}" if len(values) > 1 else ""
            mean = float(np.mean(values)) if values else None
            row_cells.append(TableCell(fmt.fixed(mean, places, signed=position > 1), spread))
        rows.append((name, tuple(row_cells)))
    caption = (
        "Means over runs ± standard deviation of single runs. Tasks differ in difficulty. With few orders, compare end "
        "scores only between methods in a column; across columns, compare gains over the base model. Nothing follows "
        "the last domain, so its change since learnt is 0 by definition, and it is half of the last column."
    )
    return Table(
        f"First two against last two domains ({unit})", ("Method", *(n for n, _ in columns)), tuple(rows), caption
    )


def _values(run: Run, number: Number, quantity: Quantity) -> dict[str, float]:
    """Return a quantity of the columns for which it was measured."""
    values = each(run, BITS if number == "bits" else number, quantity)
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _entries(cells: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    entries: dict[str, list[Run]] = {}
    for cell in cells:
        entries.setdefault(cell.grid.row, []).append(cell)
    return [(entries[name][0].grid.title, entries[name]) for name in entries]


def _scale(number: Number) -> tuple[float, int]:
    return (1.0, 4) if number.startswith("bits") else (100.0, 2)


def _runs(values: Sequence[float]) -> str:
    return f"({len(values)})" if values else ""
