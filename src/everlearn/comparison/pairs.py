"""Pair the numbers of two rows: those of the same order and seed, over the same tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from everlearn.comparison.runs import Run

Unit = tuple[int | None, int | None]
"""Order and seed of a run; None if it makes no difference."""
Rows = dict[Unit, dict[str, float]]
"""Order and seed → name (an end task, a domain, a column of the table) → number."""


def aligned(ours: Rows, reference: Rows, single: bool = False) -> tuple[Rows, Rows]:
    """Return both sides over the runs and names that both have.

    If one side does not depend on the order, the other is averaged over its orders. The base model, which has no seed,
    is paired with every seed.

    Args:
        ours: numbers of each run.
        reference: numbers of the runs with which they are compared.
        single: also keep runs without a partner, if both sides have their order.
    """
    if any(order is None for order, _ in (*ours, *reference)):
        ours, reference = over_orders(ours), over_orders(reference)
    ours, reference = _for_seeds(ours, reference), _for_seeds(reference, ours)
    matched: tuple[Rows, Rows] = {}, {}
    for unit in ours:
        names = [name for name in ours[unit] if name in reference.get(unit, {})]
        if names:
            for side, rows in zip(matched, (ours, reference), strict=True):
                side[unit] = {name: rows[unit][name] for name in names}
    if single:
        orders = {order for order, _ in ours} & {order for order, _ in reference}
        for side, rows, other in zip(matched, (ours, reference), (reference, ours), strict=True):
            side |= {unit: row for unit, row in rows.items() if unit not in other and unit[0] in orders}
    return matched


def compared(
    ours: Sequence[Run],
    reference: Sequence[Run],
    of: Callable[[Run], dict[str, float]],
    single: bool = False,
) -> tuple[Rows, Rows]:
    """Return two rows' numbers as :func:`aligned` does, each pair over the same domains and end tasks.

    Args:
        ours: runs of a row.
        reference: runs of the other row.
        of: returns the numbers of a run, means over its domains or end tasks.
        single: also keep runs without a partner, if both sides have their order.
    """
    rows, others = aligned(_beside(ours, reference, of), _beside(reference, ours, of), single)
    if any(run.grid.order is None for run in (*ours, *reference)):
        rows, others = over_orders(rows), over_orders(others)
    return rows, others


def _beside(runs: Sequence[Run], others: Sequence[Run], of: Callable[[Run], dict[str, float]]) -> Rows:
    """Return numbers by order and seed.

    A run without an order is paired with each of the others, over their domains.
    """
    ordered = [other for other in others if other.grid.order is not None]
    by_unit: Rows = {}
    for run in runs:
        if run.grid.order is not None or not ordered:
            by_unit[unit_of(run)] = of(run)
            continue
        beside = [other for other in ordered if run.grid.seed in (None, other.grid.seed)]
        by_unit |= {unit_of(other): of(within(run, [other])) for other in beside}
    return by_unit


def unit_of(run: Run) -> Unit:
    """Return a run's order and seed."""
    return run.grid.order, run.grid.seed


def within(run: Run, others: Sequence[Run]) -> Run:
    """Restrict a run without an order to the domains and end tasks of others.

    It can have more of them, from orders that were not run.
    """
    if run.grid.order is not None:
        return run
    return run.only(
        {name for other in others for name in other.domains}, {task for other in others for task in other.tasks}
    )


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
