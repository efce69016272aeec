"""What the cheaper forms of DAS do to the scores: the small grid's `das` cells again, with other options.

    python benchmarks/six-domains/shortcuts.py DATA [--seeds 1] [--runs runs/shortcuts]

What they save is measured by ``benchmarks/das_step.py``. The forms' cells are in ``shortcuts/``, made by the same code
as ``everlearn bench`` (missing ones only); ``docs/results/das-shortcuts.md`` compares them with the `das` cells in
``results/``, run by run. Cells of other settings are refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from everlearn.comparison.formatting import fixed, p_value
from everlearn.comparison.pairs import unit_of
from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import Estimate
from everlearn.files import write_text
from everlearn.grid import Grid, RowSpec, load_results
from everlearn.grid.cells import check_settings
from everlearn.grid.rows import entry_of
from everlearn.grid.summary import Line, summarise
from everlearn.model.loading import quiet
from everlearn.run.progress import Terminal
from everlearn_bench.suites import find_suite, read_overlay

HERE = Path(__file__).resolve().parent
CELLS = HERE / "shortcuts"
FORMS: dict[str, dict[str, Any]] = {
    "stop gradient": {"stop_gradient_prev": True},
    "anchor masked": {"anchor": "masked"},
    "quarter": {"contrast_fraction": 0.25},
    "quarter, both": {"contrast_fraction": 0.25, "anchor": "masked", "stop_gradient_prev": True},
}
COLUMNS = {
    "f1": ("F1", 100, 2),
    "accuracy": ("Accuracy", 100, 2),
    "bits": ("Average at the end", 1, 4),
    "bits_learnt": ("Learnt", 1, 4),
    "bits_forgotten": ("Forgotten", 1, 4),
    "bits_drift": ("General drift", 1, 4),
}
"""Number of a cell to its heading, factor and digits."""


def entry(form: str) -> RowSpec:
    """The row of a form: the method `das` under a name of its own, so that all forms share results, runs and base."""
    return replace(
        entry_of("das", find_suite("six-domains")), name=f"das_{form.replace(',', '').replace(' ', '_')}", title=form
    )


def row(name: str, line: Line, exact: bool) -> str:
    """A line of the table: the mean of the exact form; of another its difference to that, with p."""
    cells = []
    for number, (_, factor, digits) in COLUMNS.items():
        change = line.differences.get(number)
        estimate = (line.numbers.get(number) if exact else change and change.estimate) or Estimate()
        value = None if estimate.value is None else factor * estimate.value
        p = f" ({p_value(change.p_value, 2)})" if change and change.p_value is not None else ""
        cells.append(fixed(value, digits, signed=not exact) + p)
    return f"| {name} | {len(line.runs)} | {' | '.join(cells)} |"


def table(exact: Sequence[Run], others: Sequence[Run]) -> str:
    """The Markdown page, over the runs (order and seed) that both the exact form and another have."""
    head = " | ".join(title for title, _, _ in COLUMNS.values())
    lines = [f"| | runs | {head} |", "| --- " * (len(COLUMNS) + 2) + "|"]
    units = set(map(unit_of, exact)) & set(map(unit_of, others))
    cells = [cell for cell in (*exact, *others) if unit_of(cell) in units]
    line_of = {line.entry: line for line in summarise(cells, "das")} if cells else {}
    for name, form in {"das": "exact (default)", **{entry(form).name: form for form in FORMS}}.items():
        if name in line_of:
            lines.append(row(form, line_of[name], name == "das"))
    return f"""# Scores with cheaper forms of DAS

Written by `benchmarks/six-domains/shortcuts.py` from the cells beside it. The first line is DAS as the paper has it on
the [small grid](six-domains.md); the others are differences to it over runs of the same order and seed (p: Student's t
over pairs of runs). F1 and accuracy: points, mean over the end tasks after the last domain. The rest: bits per
byte of held-out text, where "learnt" is better when higher and the others when lower. What each form costs is in
[das.md](../das.md#what-a-step-costs). A form with one run has no p: its differences may be chance (over three seeds the
F1 of the exact form is 35.5 to 37.7).

{chr(10).join(lines)}
"""


def exact(shared: Mapping[str, Any]) -> list[Run]:
    """The grid's own cells of `das`.

    Raises:
        RunError: they were measured with other settings than the forms.
    """
    cells = [cell for cell in load_results(HERE / "results") if cell.grid.row == "das"]
    for cell in cells:
        check_settings(cell, shared, HERE / "results")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "shortcuts")
    arguments = parser.parse_args()
    quiet()
    overlay = read_overlay(HERE / "small.yaml")
    for form, options in FORMS.items():
        own = replace(overlay, grid=overlay.grid.model_copy(update={"methods": {"das": options}}))
        grid = Grid(
            find_suite("six-domains").on(own, arguments.data),
            [entry(form)],
            [0],
            range(arguments.seeds),
            CELLS,
            arguments.runs,
            reporter=Terminal(),
        )
        exact(grid.identity)  # before the work
        grid.run()
    write_text(
        HERE.parents[1] / "docs" / "results" / "das-shortcuts.md", table(exact(grid.identity), load_results(CELLS))
    )


if __name__ == "__main__":
    main()
