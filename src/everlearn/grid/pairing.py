"""Pair the numbers of two rows: those of the same order and seed, over the same tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from everlearn.grid.cells import CellResult

Unit = tuple[int | None, int | None]
"""Order and seed of a cell; None if it makes no difference."""
Rows = dict[Unit, dict[str, float]]
"""Order and seed → name (an end task, a domain, a column of the table) → number."""


def aligned(ours: Rows, theirs: Rows, single: bool = False) -> tuple[Rows, Rows]:
    """Return both sides over the runs and names that both have.

    If one side does not depend on the order, the other is averaged over its orders. The base model, which has no seed,
    is paired with every seed.

    Args:
        ours: numbers of each run.
        theirs: numbers of the runs with which they are compared.
        single: also keep runs without a partner, if both sides have their order.
    """
    if any(order is None for order, _ in (*ours, *theirs)):
        ours, theirs = over_orders(ours), over_orders(theirs)
    ours, theirs = _for_seeds(ours, theirs), _for_seeds(theirs, ours)
    found: tuple[Rows, Rows] = {}, {}
    for unit in ours:
        names = [name for name in ours[unit] if name in theirs.get(unit, {})]
        if names:
            for side, rows in zip(found, (ours, theirs), strict=True):
                side[unit] = {name: rows[unit][name] for name in names}
    if single:
        orders = {order for order, _ in ours} & {order for order, _ in theirs}
        for side, rows, other in zip(found, (ours, theirs), (theirs, ours), strict=True):
            side |= {unit: row for unit, row in rows.items() if unit not in other and unit[0] in orders}
    return found


def compared(
    ours: Sequence[CellResult],
    theirs: Sequence[CellResult],
    of: Callable[[CellResult], dict[str, float]],
    single: bool = False,
) -> tuple[Rows, Rows]:
    """Return two rows' numbers as :func:`aligned` does, each pair over the same domains and end tasks.

    Args:
        ours: cells of a row.
        theirs: cells of the other row.
        of: returns the numbers of a cell, means over its domains or end tasks.
        single: also keep runs without a partner, if both sides have their order.
    """
    rows, others = aligned(_beside(ours, theirs, of), _beside(theirs, ours, of), single)
    if any(cell.order is None for cell in (*ours, *theirs)):
        rows, others = over_orders(rows), over_orders(others)
    return rows, others


def _beside(
    cells: Sequence[CellResult], others: Sequence[CellResult], of: Callable[[CellResult], dict[str, float]]
) -> Rows:
    """Return numbers by order and seed.

    A cell without an order is paired with each of the others, over their domains.
    """
    ordered = [other for other in others if other.order is not None]
    found: Rows = {}
    for cell in cells:
        if cell.order is not None or not ordered:
            found[cell.order, cell.seed] = of(cell)
            continue
        beside = [other for other in ordered if cell.seed in (None, other.seed)]
        found |= {(other.order, other.seed): of(within(cell, [other])) for other in beside}
    return found


def within(cell: CellResult, others: Sequence[CellResult]) -> CellResult:
    """Restrict a cell without an order to the domains and end tasks of others.

    It can have more of them, from orders that were not run.
    """
    if cell.order is not None:
        return cell
    domains = {name for other in others for name in other.domains}
    tasks = {name for other in others for name in other.tasks}
    left_out = set(cell.domains) - domains
    kept = {
        "domains": [name for name in cell.domains if name in domains],
        "tasks": {name: at for name, at in cell.tasks.items() if name in tasks},
        "bits_per_byte": {name: bits for name, bits in cell.bits_per_byte.items() if name not in left_out},
    }
    return cell.model_copy(update=kept)


def over_orders(rows: Rows) -> Rows:
    """Return the mean over orders, for each seed."""
    seeds: dict[int | None, dict[str, list[float]]] = {}
    for (_, seed), row in rows.items():
        for name, value in row.items():
            seeds.setdefault(seed, {}).setdefault(name, []).append(value)
    return {(None, seed): {name: float(np.mean(each)) for name, each in row.items()} for seed, row in seeds.items()}


def _for_seeds(rows: Rows, other: Rows) -> Rows:
    only = rows.get((None, None))
    return rows if only is None else dict.fromkeys(other, only)
