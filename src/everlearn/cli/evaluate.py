"""``everlearn evaluate``: evaluate existing models."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, Checkpoints, empty_table, say, show, telling

if TYPE_CHECKING:
    from rich.console import RenderableType

    from everlearn.commands.evaluate import DifferenceToFirst
    from everlearn.evaluation import Estimate, Results


def command(
    checkpoints: Checkpoints,
    on: Annotated[
        Path, typer.Option("--on", metavar="RECIPE", help="The recipe with the held-out text and end tasks.")
    ],
    end_tasks: Annotated[
        bool, typer.Option("--end-tasks/--no-end-tasks", help="Whether to evaluate end tasks.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Save cells and results.json, for `everlearn report`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate existing models on a recipe's held-out text and end tasks, and compare them with the first."""
    from dataclasses import asdict

    from everlearn.commands.evaluate import differences, evaluate, named
    from everlearn.config.recipe import load
    from everlearn.run.writable import check_place

    reporter = telling()
    recipe, rows = load(on), named(checkpoints)
    if output is not None:
        check_place("--output", output, folder=True)
    with tempfile.TemporaryDirectory() as thrown_away:
        folder = output or Path(thrown_away) / "evaluation"
        results = evaluate(rows, recipe, folder, end_tasks=end_tasks, reporter=reporter)
        compared = differences(folder, results)
    as_data = results.model_dump(mode="json") | {"differences": [asdict(each) for each in compared]}
    show(as_data, as_json, lambda: _rendered(results, compared))
    if output is not None and not as_json:
        say(f"Results: {output}")


def _rendered(results: Results, compared: list[DifferenceToFirst]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from everlearn.commands.evaluate import leading
    from everlearn.evaluation import METRICS

    shown: list[RenderableType] = []
    for name in leading(results):
        scores, estimates = results.matrices[name], results.matrices[name].estimates()
        title = f"{METRICS[name].title} {'↑' if scores.higher_is_better else '↓'}"
        shown.append(_table(title, scores.columns, scores.rows, estimates, signed=False))
        change = {(each.row, each.column): each.difference for each in compared if each.metric == name}
        if change:
            title = f"{METRICS[name].title}, difference to {scores.rows[0]} (the same examples for both)"
            shown.append(_table(title, scores.columns, scores.rows[1:], change, signed=True))
    return Group(*shown, *(Text(f"Note: {note}") for note in results.notes))


def _table(
    title: str, columns: list[str], rows: list[str], estimates: dict[tuple[str, str], Estimate], signed: bool
) -> RenderableType:
    from rich.text import Text

    from everlearn.comparison.formatting import decimals, estimate

    table = empty_table(title, ("Model",), columns)
    places = decimals(each.value for each in estimates.values())
    for row in rows:
        cells = [estimates.get((row, column)) for column in columns]
        table.add_row(Text(row), *(Text("–" if each is None else estimate(each, places, signed)) for each in cells))
    return table
