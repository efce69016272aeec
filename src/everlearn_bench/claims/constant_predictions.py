"""End tasks that decide nothing, because runs end with one label for everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from everlearn.grid.cells import CellResult, TaskScores
from everlearn.grid.pairing import within
from everlearn.report.tables import Table, TableCell
from everlearn.wording import count

CONSTANT = "constant"
"""The entry that answers the most frequent label of the training part to everything."""
DEGENERATE = 0.5
"""A task is named when a larger share of the runs ends like that."""


def constant_table(cells: Sequence[CellResult]) -> Table | None:
    """How many runs end, on each end task, with exactly the scores of one label as the answer to everything.

    None without an entry that gives such answers. Where it does not say how often each label is right, the label is the
    most frequent one.
    """
    learnt = [cell for cell in cells if cell.order is not None] or cells
    asked = next((within(cell, learnt) for cell in cells if cell.entry == CONSTANT), None)
    if asked is None:
        return None
    rows, named, every = [], [], list[TaskScores]()
    for task, moments in asked.tasks.items():
        others = [cell.tasks[task] for cell in cells if cell.entry != CONSTANT and task in cell.tasks]
        ends = [each["final"] for each in others if "final" in each]
        single = _single_labels(moments["final"])
        constant = sum(_is_one_label(end, single) for end in ends)
        rows.append((task, (TableCell(str(constant)), TableCell(str(len(ends))))))
        if constant > DEGENERATE * len(ends):
            named.append(f"{task} (in {constant} of {count(len(ends), 'run')})")
        every += ends
    caption = _caption(every, all(moments["final"].shares for moments in asked.tasks.values()))
    if named:
        caption += (
            f" Degenerate: {', '.join(named)}. Such a task cannot tell methods apart. It stays in every mean above, "
            "where it draws differences and forgetting rates towards 0."
        )
    return Table("Runs that end with one label for everything", ("End task", "Runs", "of"), tuple(rows), caption)


def _caption(ends: Sequence[TaskScores], any_label: bool) -> str:
    """Return the caption: what is compared."""
    label = "one of the labels, whichever it is" if any_label else "the most frequent label of the training part"
    with_f1 = {bool(end.macro_f1) for end in ends}
    if with_f1 == {True}:
        return f"Counted where accuracy and macro-F1 both are those of {label}."
    scores = "accuracy, and macro-F1 of runs that have it," if True in with_f1 else "accuracy"
    return f"Counted where {scores} is exactly that of {label}; other answers may have the same accuracy by chance."


def _single_labels(constant: TaskScores) -> list[tuple[float, float | None]]:
    """Accuracy and macro-F1 of labels, each as the answer to everything; without those that are never right."""
    if not constant.shares:
        return [(constant.accuracy[0], constant.macro_f1[0] if constant.macro_f1 else None)]
    # A label of share q has precision q and recall 1; the F1 of the others is 0.
    return [(share, 2 * share / (1 + share) / len(constant.shares)) for share in constant.shares if share > 0]


def _is_one_label(end: TaskScores, single: Sequence[tuple[float, float | None]]) -> bool:
    """Whether every fine-tuning ends so; macro-F1 is compared where both sides have it."""
    pairs = zip_longest(end.accuracy, end.macro_f1)
    return all(any(_same(a, b) and _same(f, g) for b, g in single) for a, f in pairs)


def _same(ours: float | None, other: float | None) -> bool:
    return ours is None or other is None or math.isclose(ours, other, rel_tol=0, abs_tol=1e-12)
