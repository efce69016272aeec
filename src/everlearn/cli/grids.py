"""Options of the commands that run a grid, and how its results are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from everlearn.grid import Grid, State
    from everlearn.grid.template import GridTemplate

Budget = Annotated[int | None, typer.Option(metavar="TOKENS", help="Tokens per domain, for every method.")]
KeepModels = Annotated[bool, typer.Option("--keep", help="Keep the models of finished runs.")]
OnlyShow = Annotated[bool, typer.Option("--show", help="Run nothing; show existing results.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing; list the runs, and estimate the time of the missing ones.")
]
Output = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the tables: .html, .md, .tex, .csv or .json."),
]


def check_outputs(output: Sequence[Path] | None) -> None:
    """Refuse an output file whose extension names no format."""
    from everlearn.errors import RecipeError
    from everlearn.grid.page import GridPage

    for file in output or ():
        if file.suffix.lower().lstrip(".") not in GridPage.ENDINGS:
            raise RecipeError(f"`--output` is '{file}'; its ending must be one of .{', .'.join(GridPage.ENDINGS)}.")


@dataclass(frozen=True)
class Showing:
    """How a grid is shown.

    Attributes:
        pages: files that the tables are written to.
        optional: whether a page that cannot be written is ignored.
        reference: the row that the others are compared with.
        shown: the rows to show; all if empty.
        only: whether cells were only to be shown, not computed.
        quiet: whether to print only the written files and the reasons of failed cells.
        as_json: whether to print JSON instead.
    """

    pages: Sequence[Path]
    optional: bool
    reference: str | None
    shown: Sequence[str]
    only: bool
    quiet: bool
    as_json: bool


def show_dry_run(grid: Grid, as_json: bool) -> None:
    """Show every cell of a grid with an estimate of its time."""
    from everlearn.grid.estimates import estimate
    from everlearn.report.tables import terminal_table

    outcome = estimate(grid)
    show(outcome.to_json(), as_json, lambda: terminal_table(outcome.table()))


def show_grid(
    template: GridTemplate,
    place: Path,
    states: Sequence[State],
    how: Showing,
    also: Callable[[], Sequence[Path]] = list,
    runs: Path | None = None,
) -> None:
    """Show the tables of all existing cells and the progress of the grid; exit with code 1 if a cell failed.

    Args:
        template: the template of the grid.
        place: folder of the results.
        states: states of the requested cells; empty if unknown.
        how: options of the output.
        also: writes further pages and returns their paths.
        runs: folder of the runs. If given, the page begins with a verdict, and the report of all runs is written too.
    """
    from rich.console import Group
    from rich.text import Text

    from everlearn.comparison.comparison import compare_runs
    from everlearn.errors import RunError
    from everlearn.files import write_text
    from everlearn.grid import load_results
    from everlearn.grid.cells import run_folders, runs_of
    from everlearn.grid.grid import completeness
    from everlearn.grid.page import GridPage, status_table
    from everlearn.report import page
    from everlearn.report.tables import terminal_table

    cells = load_results(place)
    folders = None if runs is None else run_folders(cells, runs)
    # If no cell succeeded, only the reasons can be shown.
    sheet = GridPage(template, cells, how.reference, how.shown, states, folders) if cells or how.only else None
    parts: list[RenderableType] = []
    if sheet is not None:
        if not how.quiet:
            parts.append(sheet.terminal())
        for file in how.pages:
            try:
                write_text(file, sheet.written(file.suffix.lower().lstrip(".")))
                parts.append(Text(f"Wrote {file}"))
            except (OSError, RunError) as error:
                if not how.optional:
                    raise
                parts.append(Text(f"The page {file} was not written: {getattr(error, 'strerror', error)}"))
    incomplete = completeness(states) if any(state.state != "done" for state in states) else ""
    report = [place / "runs.html"] if folders else []
    for file in report:
        write_text(file, page(compare_runs(runs_of(cells, folders or {})), incomplete))
    parts += [Text(f"Wrote {file}") for file in (*report, *also())]
    failed = any(state.state == "failed" for state in states) and not how.only
    if states and (failed or not how.quiet):
        status = status_table(states)
        parts.append(terminal_table(status) if status.rows else Text(status.title))
    value = {**(sheet.to_json() if sheet else {}), "cells": [vars(state) for state in states]}
    show(value, how.as_json, lambda: Group(*parts))
    if failed:
        raise typer.Exit(1)
