"""``everlearn evaluate``: measure models that exist already."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, say, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from everlearn.evaluation import Results


def command(
    checkpoints: Annotated[
        list[str],
        typer.Argument(metavar="CHECKPOINT", help="Folders or hub ids, also LABEL=PATH; a run stands for its stages."),
    ],
    on: Annotated[Path, typer.Option("--on", metavar="RECIPE", help="Whose held-out text and end tasks are measured.")],
    end_tasks: Annotated[bool, typer.Option("--end-tasks/--no-end-tasks", help="Ask the end tasks too.")] = True,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Keep cells and results.json, for `everlearn report`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure models that exist already on a recipe's held-out text and end tasks: a row each."""
    from everlearn.config.recipe import load
    from everlearn.model.loading import quiet
    from everlearn.run.places import check_place
    from everlearn.run.progress import Terminal
    from everlearn.tools.evaluating import evaluate, named

    quiet()
    recipe, rows = load(on), named(checkpoints)
    if output is not None:
        check_place("--output", output, folder=True)
    with tempfile.TemporaryDirectory() as thrown_away:
        folder = output or Path(thrown_away) / "evaluation"
        results = evaluate(rows, recipe, folder, end_tasks=end_tasks, reporter=Terminal())
    show(results.model_dump(mode="json"), as_json, lambda: _rendered(results))
    if output is not None and not as_json:
        say(f"Results: {output}")


def _rendered(results: Results) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from everlearn.evaluation import METRICS
    from everlearn.report.formatting import decimals, estimate
    from everlearn.tools.evaluating import leading

    shown: list[RenderableType] = []
    for name in leading(results):
        scores, found = results.matrices[name], results.matrices[name].estimates()
        arrow = "↑" if scores.higher_is_better else "↓"
        table = Table(title=Text(f"{METRICS[name].title} {arrow}"), title_justify="left")
        for column in ("Model", *scores.columns):
            table.add_column(Text(column), justify="left" if column == "Model" else "right", overflow="fold")
        places = decimals(each.value for each in found.values())
        for row in scores.rows:
            cells = [found.get((row, column)) for column in scores.columns]
            table.add_row(Text(row), *(Text("–" if each is None else estimate(each, places)) for each in cells))
        shown.append(table)
    return Group(*shown, *(Text(f"Note: {note}") for note in results.notes))
