"""Find end tasks that cannot tell methods apart, because runs end with one label for everything."""

from __future__ import annotations

import math
from collections.abc import Sequence

from everlearn.comparison.pairs import within
from everlearn.comparison.runs import Run
from everlearn.grid.arrangements import CONSTANT
from everlearn.grid.numbers import parts
from everlearn.report.tables import Table, TableCell
from everlearn.wording import count

End = tuple[float, float | None]
"""Accuracy and macro-F1; None where the task has no labels."""
DEGENERATE = 0.5
"""Share of runs that end like that, above which a task is named."""


def constant_table(cells: Sequence[Run]) -> Table | None:
    """Count the runs that end, on each end task, with exactly the scores of always answering one label.

    None without the row `constant`, which gives such answers. If that row does not record how often each label is
    right, only the most frequent label is used. With several fine-tunings their mean is compared.
    """
    learnt = [cell for cell in cells if cell.grid.order is not None] or cells
    constant_run = next((within(cell, learnt) for cell in cells if cell.grid.row == CONSTANT), None)
    if constant_run is None:
        return None
    rows, named, every = [], [], list[End]()
    known, shares = _ends(constant_run), constant_run.grid.shares
    others = [_ends(cell) for cell in cells if cell.grid.row != CONSTANT]
    for task, constant in known.items():
        ends = [each[task] for each in others if task in each]
        single = _single_labels(constant, shares.get(task, []))
        count_of = sum(any(_same(a, b) and _same(f, g) for b, g in single) for a, f in ends)
        rows.append((task, (TableCell(str(count_of)), TableCell(str(len(ends))))))
        if count_of > DEGENERATE * len(ends):
            named.append(f"{task} (in {count_of} of {count(len(ends), 'run')})")
        every += ends
    caption = _caption(every, all(shares.get(task) for task in known))
    if named:
        caption += (
            f" Degenerate: {', '.join(named)}. Such a task cannot tell methods apart. It still counts in every mean "
            "above, and reduces differences and forgetting rates."
        )
    return Table("Runs that end with one label for everything", ("End task", "Runs", "of"), tuple(rows), caption)


def _ends(run: Run) -> dict[str, End]:
    """Return accuracy and macro-F1 of each end task at the end."""
    f1 = parts(run, "macro_f1")
    return {task: (accuracy, f1.get(task)) for task, accuracy in parts(run, "accuracy").items()}


def _caption(ends: Sequence[End], any_label: bool) -> str:
    """Return the caption of the table."""
    label = "the same label" if any_label else "the most frequent label of the training part"
    with_f1 = {f1 is not None for _, f1 in ends}
    if with_f1 == {True}:
        return f"Counts runs whose accuracy and macro-F1 both equal those of always giving {label}."
    scores = "accuracy, and macro-F1 of runs that have it," if True in with_f1 else "accuracy"
    return f"Counts runs whose {scores} equals that of always giving {label}; other answers may match it by chance."


def _single_labels(constant: End, shares: Sequence[float]) -> list[End]:
    """Return accuracy and macro-F1 of always answering each label; labels that are never right are left out."""
    if not shares:
        return [constant]
    # A label of share q has precision q and recall 1; the F1 of the others is 0.
    return [(share, 2 * share / (1 + share) / len(shares)) for share in shares if share > 0]


def _same(ours: float | None, other: float | None) -> bool:
    return ours is None or other is None or math.isclose(ours, other, rel_tol=0, abs_tol=1e-12)
