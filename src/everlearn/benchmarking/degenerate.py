"""End tasks that decide nothing, because runs end with one label for everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everlearn.benchmarking.cells import CellResult, TaskScores
from everlearn.report.tables import Table, TableCell

CONSTANT = "constant"
"""The entry that answers the most frequent label of the training part to everything."""
DEGENERATE = 0.5
"""A task is named when a larger share of the runs ends like that."""


def constant_table(cells: Sequence[CellResult]) -> Table | None:
    """How many runs end, on each end task, with exactly the scores of the most frequent label.

    Accuracy and macro-F1 both: no other answer is likely to have these two. None without an entry for that label.
    """
    asked = next((cell for cell in cells if cell.entry == CONSTANT), None)
    if asked is None:
        return None
    rows, named = [], []
    for task, moments in asked.tasks.items():
        others = [cell.tasks[task] for cell in cells if cell is not asked and task in cell.tasks]
        ends = [each["final"] for each in others if "final" in each]
        constant = sum(_same(end, moments["final"]) for end in ends)
        rows.append((task, (TableCell(str(constant)), TableCell(str(len(ends))))))
        if constant > DEGENERATE * len(ends):
            named.append(f"{task} (in {constant} of {len(ends)} runs)")
    caption = "Counted where accuracy and macro-F1 both are those of the most frequent label of the training part."
    if named:
        caption += (
            f" Degenerate: {', '.join(named)}. Such a task cannot tell methods apart. It stays in every mean above, "
            "where it draws differences and forgetting rates towards 0."
        )
    return Table("Runs that end with one label for everything", ("End task", "Runs", "of"), tuple(rows), caption)


def _same(ours: TaskScores, other: TaskScores) -> bool:
    pairs = ((ours.accuracy, other.accuracy), (ours.macro_f1, other.macro_f1))
    known = [(values, expected) for values, expected in pairs if values and expected]
    return all(np.allclose(values, expected[0], rtol=0, atol=1e-12) for values, expected in known)
