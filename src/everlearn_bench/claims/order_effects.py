"""What the place in the stream does: effect of the order, and the first two domains against the last two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from everlearn.comparison import formatting as fmt
from everlearn.grid.cells import CellResult
from everlearn.grid.parts import GridContents, GridPart, grid_part
from everlearn.grid.rows import in_order
from everlearn.grid.template import GridTemplate
from everlearn.report.tables import Table, TableCell
from everlearn_bench.claims.judge import parts
from everlearn_bench.suites.claims import Number

ENDS = 2
"""Domains at either end of the stream."""
_Column = tuple[str, Callable[[CellResult], float | None]]


@dataclass
class OrderEffects(GridPart):
    """The tables of both analyses."""

    found: list[Table]

    def tables(self) -> list[Table]:
        """Return them."""
        return self.found


@grid_part("order effects")
def order_effects(shown: GridContents) -> GridPart | None:
    """Return what the place in the stream does, where a grid has runs in an order."""
    found = effect_tables(shown.cells, shown.template)
    return OrderEffects(found) if found else None


def effect_tables(cells: Sequence[CellResult], template: GridTemplate) -> list[Table]:
    """Both analyses, of the end tasks where there are any, else of held-out text; empty without a run in an order.

    One domain has no order, and of fewer than four the first two and the last two overlap.
    """
    entries = in_order({cell.entry for cell in cells}, template)
    ordered = sorted((cell for cell in cells if cell.order is not None), key=lambda cell: entries.index(cell.entry))
    if all(len(cell.domains) < 2 for cell in ordered):
        return []
    if any(cell.tasks for cell in ordered):
        lead = next(
            (each for each in template.metrics if any(parts(cell, each) for cell in ordered)), template.metrics[0]
        )
        word = {"f1": "F1", "accuracy": "accuracy"}[lead]
        lost: Number = "f1_forgetting" if lead == "f1" else "accuracy_forgetting"
        shown: list[tuple[Number, str]] = [(lead, f"average {word} (points)"), (lost, f"{word} forgetting (points)")]
    else:
        shown = [("bits", "bits per byte at the end"), ("bits_forgotten", "bits per byte forgotten")]
    found = [order_table(ordered, number, title) for number, title in shown]
    unit = {"f1": "F1, points", "accuracy": "accuracy, points", "bits": "bits per byte"}[shown[0][0]]
    if any(len(cell.domains) < 2 * ENDS for cell in ordered):
        return found  # the first and the last would be partly the same
    return [*found, ends_table(ordered, shown[0][0], unit)]


def order_table(cells: Sequence[CellResult], number: Number, title: str) -> Table:
    """Entry × order: the mean over seeds, and how far it spreads over orders and over seeds.

    Args:
        cells: those with an order.
        number: which.
        title: how it is called.
    """
    orders = sorted({cell.order for cell in cells if cell.order is not None})
    scale, places = _scale(number)
    rows = []
    for name, own in _entries(cells):
        by_order: dict[int, list[float]] = {}
        for cell in own:
            values = list(parts(cell, number).values())
            if values and cell.order is not None:
                by_order.setdefault(cell.order, []).append(scale * float(np.mean(values)))
        means = {order: float(np.mean(values)) for order, values in by_order.items()}
        within = [float(np.var(values, ddof=1)) for values in by_order.values() if len(values) > 1]
        between = float(np.std(list(means.values()), ddof=1)) if len(means) > 1 else None
        spread = float(np.sqrt(np.mean(within))) if within else None
        found = [TableCell(fmt.fixed(means.get(order), places), _runs(by_order.get(order, []))) for order in orders]
        rows.append((name, (*found, TableCell(fmt.fixed(between, places)), TableCell(fmt.fixed(spread, places)))))
    caption = (
        "Means over seeds; in brackets the number of runs. Spread: standard deviation of these means over orders, and "
        "of single runs over the seeds of an order. With n seeds an order, chance alone makes means spread by the "
        "second divided by √n."
    )
    if len(orders) == 1:
        caption = f"One order only so far ({orders[0]}): nothing can be said about the effect of the order. {caption}"
    header = ("Method", *(f"order {order}" for order in orders), "spread over orders", "spread over seeds")
    return Table(f"Effect of the order: {title}", header, tuple(rows), caption)


def ends_table(cells: Sequence[CellResult], number: Number, unit: str) -> Table:
    """Compare the first two domains with the last two: end score, gain over the base model, change since learnt.

    Args:
        cells: those with an order.
        number: ``f1``, ``accuracy`` or ``bits``.
        unit: of the numbers, as the title says it.
    """
    scale, places = _scale(number)
    # Bits are good when low: gain and change are turned so that above 0 is good for either.
    sign = -1.0 if number == "bits" else 1.0

    def at(cell: CellResult, names: Sequence[str], later: str, earlier: str | None) -> float | None:
        found = []
        for name in names:
            moments = _moments(cell, name, number)
            if later in moments and (earlier is None or earlier in moments):
                found.append(moments[later] if earlier is None else sign * (moments[later] - moments[earlier]))
        return scale * float(np.mean(found)) if found else None

    def first(cell: CellResult) -> list[str]:
        return cell.domains[:ENDS]

    def last(cell: CellResult) -> list[str]:
        return cell.domains[-ENDS:]

    columns: list[_Column] = [
        ("at the end, first two", lambda cell: at(cell, first(cell), "final", None)),
        ("at the end, last two", lambda cell: at(cell, last(cell), "final", None)),
        ("over the base, first two ↑", lambda cell: at(cell, first(cell), "final", "base")),
        ("over the base, last two ↑", lambda cell: at(cell, last(cell), "final", "base")),
        ("since learnt, first two ↑", lambda cell: at(cell, first(cell), "final", "learnt")),
        ("since learnt, last two ↑", lambda cell: at(cell, last(cell), "final", "learnt")),
    ]
    rows = []
    for name, own in _entries(cells):
        found = []
        for position, (_, value) in enumerate(columns):
            values = [each for each in map(value, own) if each is not None]
            spread = f"± {fmt.fixed(float(np.std(values, ddof=1)), places)}" if len(values) > 1 else ""
            mean = float(np.mean(values)) if values else None
            found.append(TableCell(fmt.fixed(mean, places, signed=position > 1), spread))
        rows.append((name, tuple(found)))
    caption = (
        "Means over runs ± standard deviation of single runs. Tasks differ in difficulty: with few orders compare "
        "methods within a column, and gains over the base model across columns, not end scores. Nothing follows the "
        "last domain, so that half of the last column is 0 by definition."
    )
    return Table(
        f"First two against last two domains ({unit})", ("Method", *(n for n, _ in columns)), tuple(rows), caption
    )


def _moments(cell: CellResult, name: str, number: Number) -> dict[str, float]:
    if number == "bits":
        return {str(moment): value for moment, value in cell.bits_per_byte.get(name, {}).items()}
    found = {str(moment): getattr(at, number) for moment, at in cell.tasks.get(name, {}).items()}
    return {moment: float(np.mean(values)) for moment, values in found.items() if values}


def _entries(cells: Sequence[CellResult]) -> list[tuple[str, list[CellResult]]]:
    entries: dict[str, list[CellResult]] = {}
    for cell in cells:
        entries.setdefault(cell.entry, []).append(cell)
    return [(entries[name][0].title, entries[name]) for name in entries]


def _scale(number: Number) -> tuple[float, int]:
    return (1.0, 4) if number.startswith("bits") else (100.0, 2)


def _runs(values: Sequence[float]) -> str:
    return f"({len(values)})" if values else ""
