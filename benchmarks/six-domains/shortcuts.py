"""What the cheaper forms of DAS do to the scores: the small grid's `das` cells again, with other options.

    python benchmarks/six-domains/shortcuts.py DATA [--seeds 1] [--runs runs/shortcuts]

What they save is measured by ``benchmarks/das_step.py``. Every form has a folder of cells in ``shortcuts/``, made by
the same code as ``everlearn bench`` (missing ones only); ``docs/results/das-shortcuts.md`` compares them with the `das`
cells in ``results/``, run by run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everlearn.benchmarking import CellResult, Grid, find_suite, load_results, load_settings, resolve
from everlearn.benchmarking.summary import Line, summarise
from everlearn.files import write_text
from everlearn.loading import quiet
from everlearn.progress import Terminal

HERE = Path(__file__).resolve().parent
FORMS: dict[str, dict[str, Any]] = {
    "stop gradient": {"stop_gradient_prev": True},
    "anchor masked": {"anchor": "masked"},
    "quarter": {"contrast_fraction": 0.25},
    "quarter, both": {"contrast_fraction": 0.25, "anchor": "masked", "stop_gradient_prev": True},
}
COLUMNS = {
    "f1": ("F1", 100, 2),
    "accuracy": ("Accuracy", 100, 2),
    "bits": ("At the end", 1, 4),
    "bits_learnt": ("Learnt", 1, 4),
    "bits_forgotten": ("Forgotten", 1, 4),
    "bits_drift": ("General drift", 1, 4),
}
"""Number of a cell to its heading, factor and digits."""


def place(form: str) -> Path:
    """The folder of a form's cells."""
    return HERE / "shortcuts" / form.replace(",", "").replace(" ", "-")


def row(name: str, line: Line, exact: bool) -> str:
    """A line of the table: the mean of the exact form; of another its difference to that, with p."""
    cells = []
    for number, (_, factor, digits) in COLUMNS.items():
        if exact:
            cells.append(f"{factor * (line.numbers[number].value or 0):.{digits}f}")
        else:
            found = line.differences[number]
            value = f"{factor * (found.estimate.value or 0):+.{digits}f}"
            cells.append(value if found.p_value is None else f"{value} (p = {found.p_value:.2f})")
    return f"| {name} | {line.cells} | {' | '.join(cells)} |"


def table(exact: Sequence[CellResult]) -> str:
    """The Markdown page."""
    head = " | ".join(title for title, _, _ in COLUMNS.values())
    lines = [f"| | runs | {head} |", "| --- " * (len(COLUMNS) + 2) + "|"]
    for form in FORMS:
        found = [cell.model_copy(update={"entry": form}) for cell in load_results(place(form))]
        if found:
            own, other = summarise([*exact, *found], reference="das")
            if len(lines) == 2:
                lines.append(row("exact (default)", own, True))
            lines.append(row(form, other, False))
    return f"""# What the cheaper forms of DAS do to the scores

Written by `benchmarks/six-domains/shortcuts.py` from the cells beside it. The first line is DAS as the paper has it on
the [small grid](six-domains.md); the others are differences to it over runs of the same order and seed (p: sign-flip
permutation test over runs). F1 and accuracy: points, mean over the end tasks after the last domain. The rest: bits per
byte of held-out text, where "learnt" is better when higher and the others when lower. What each form costs is in
[das.md](../das.md#what-a-step-costs).

{chr(10).join(lines)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "shortcuts")
    arguments = parser.parse_args()
    quiet()
    settings = load_settings(HERE / "small.yaml")
    suite, entries = find_suite("six-domains"), resolve(["das"])
    for form, options in FORMS.items():
        changed = settings.model_copy(update={"methods": {"das": options}})
        seeds, runs = range(arguments.seeds), arguments.runs / place(form).name
        Grid(suite, entries, [0], seeds, changed, place(form), runs, data=arguments.data, reporter=Terminal()).run()
    exact = [cell for cell in load_results(HERE / "results") if cell.entry == "das"]
    write_text(HERE.parents[1] / "docs" / "results" / "das-shortcuts.md", table(exact))


if __name__ == "__main__":
    main()
