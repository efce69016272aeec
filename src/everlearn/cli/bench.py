"""``everlearn bench``: methods × orders × seeds on a suite, one result a cell, one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, check_place, show

if TYPE_CHECKING:
    from rich.console import RenderableType


def command(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help="The suite, for example six-domains.")],
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods and variants by our names or the paper's, with commas; also `constant` "
            "(the most frequent label), `none` (the base model), `separate` (one model per domain), `pool` (all "
            "domains at once), or `all` (the paper's table, and `constant`), `ablations` (of DAS) and `relatives`."
        ),
    ] = None,
    orders: Annotated[str, typer.Option(help="Numbers of the suite's orders, with commas.")] = "0",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds of training: 0, 1, …")] = 3,
    budget: Annotated[int | None, typer.Option(metavar="TOKENS", help="Tokens per domain, for every method.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the suite's data.")] = None,
    model: Annotated[str | None, typer.Option(help="Hub id or folder of the base model.")] = None,
    settings: Annotated[Path | None, typer.Option(help="YAML file with what all cells share.")] = None,
    results: Annotated[Path | None, typer.Option(help="One JSON file a cell; bench/SUITE when left out.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Runs under way; runs/bench-SUITE when left out.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the models of finished cells.")] = False,
    only_show: Annotated[bool, typer.Option("--show", help="Run nothing: show the results that are there.")] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Entry that the others are compared with; when left out, plain training, "
            "else the base model, else the first."
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the tables: .html, .md, .tex, .csv or .json."),
    ] = None,
    claims: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge the claims of the suite's paper, as a Markdown page.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fill a grid of methods × orders × seeds on a suite: missing cells only, and one table of all that is there."""
    from rich.console import Group
    from rich.text import Text

    from everlearn.benchmarking import Grid, load_results, load_settings, resolve
    from everlearn.benchmarking.claims_page import write_claims
    from everlearn.benchmarking.page import Sheet, status_table
    from everlearn.errors import RecipeError, RunError
    from everlearn.files import write_text
    from everlearn.model.loading import quiet
    from everlearn.report.tables import terminal_table
    from everlearn.run.progress import Terminal
    from everlearn.suites import find_suite

    quiet()
    for file in output or ():
        if file.suffix.lower().lstrip(".") not in Sheet.ENDINGS:
            raise RecipeError(f"`--output` is '{file}'; its ending must be one of .{', .'.join(Sheet.ENDINGS)}.")
    chosen = find_suite(suite)
    entries = resolve(_words(methods), chosen) if methods is not None else []
    against = resolve([reference], chosen, "--reference")[0].name if reference else None
    place, working = results or Path("bench") / suite, runs or Path("runs") / f"bench-{suite}"
    # A part of the results does not replace the page of all.
    pages = output or ([] if only_show and entries else [place / "index.html"])
    if not only_show:
        if not entries:
            raise RecipeError("`everlearn bench` needs `--methods`, for example --methods sequential,das,ewc.")
        check_place("--results", place, folder=True)
        check_place("--runs", working, folder=True)
    # Results that nobody may write to can be shown: their page is not worth an error.
    optional = only_show and not output
    for file in () if optional else pages:
        check_place("--output", file)
    if claims is not None:
        check_place("--claims", claims)
    states = []
    if not only_show:
        grid = Grid(
            chosen,
            entries,
            _numbers(orders),
            range(seeds),
            load_settings(settings, model=model, budget_tokens=budget),
            place,
            working,
            data=data,
            keep=keep,
            reporter=Terminal(),
        )
        states = grid.run()
    cells = load_results(place)
    rows = [entry.name for entry in entries] if only_show else []
    # Where no cell came through, the reasons are all that there is to show.
    sheet = Sheet(chosen, cells, against, rows) if cells or only_show else None
    parts: list[RenderableType] = []
    if sheet is not None:
        parts.append(sheet.terminal())
        for file in pages:
            try:
                write_text(file, sheet.written(file.suffix.lower().lstrip(".")))
                parts.append(Text(f"Wrote {file}"))
            except (OSError, RunError) as error:
                if not optional:
                    raise
                parts.append(Text(f"The page {file} was not written: {getattr(error, 'strerror', error)}"))
    if claims is not None:
        write_claims(chosen, place, claims)
        parts.append(Text(f"Wrote {claims}"))
    if states:
        status = status_table(states)
        parts.append(terminal_table(status) if status.rows else Text(status.title))
    value = {"cells": [vars(state) for state in states], **(sheet.to_json() if sheet else {})}
    show(value, as_json, lambda: Group(*parts))
    if any(state.state == "failed" for state in states):
        raise typer.Exit(1)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    from everlearn.errors import RecipeError

    words = _words(text)
    if not words or not all(word.strip().isdigit() for word in words):
        raise RecipeError(f"`--orders` is '{text}', but must be numbers with commas, for example 0,1.")
    return [int(word) for word in words]
