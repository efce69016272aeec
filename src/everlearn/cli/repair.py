"""``everlearn repair``: keep as much of what a run learnt as a budget of forgetting allows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import AsJson, RunPath, learner_of, say, show


def command(
    run: RunPath,
    budget: Annotated[float, typer.Option(min=0, metavar="BITS", help="Bits per byte that the text may lose.")] = 0.02,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="NAME", help="Held-out set to which the budget applies; default: the general text."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="FILE", help="A text of your own instead, on which no stage was trained."),
    ] = None,
    since: Annotated[
        str, typer.Option("--from", metavar="STAGE", help="Start of the update: a domain, or `base`.")
    ] = "base",
    until: Annotated[
        str | None, typer.Option("--to", metavar="STAGE", help="End of the update; default: the last stage.")
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(
            min=2, help="Largest number of rows to read of each held-out set; the search uses half of the budgeted one."
        ),
    ] = None,
    sure: Annotated[
        bool, typer.Option("--sure", help="Require the upper end of the loss's 95 % interval to be within the budget.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Write the repaired model; a new folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the largest step along a run's update that keeps general text within a budget, without training."""
    from rich.console import Group

    from everlearn import files
    from everlearn.diagnostics.checkpoint_distance import pair_of
    from everlearn.diagnostics.pages import of_repair, sentences, write_page
    from everlearn.diagnostics.repair import save_repaired, search_repair
    from everlearn.errors import RecipeError
    from everlearn.report.tables import terminal_table
    from everlearn.run.writable import check_new, check_place

    if on is not None and text is not None:
        raise RecipeError("`--on` names a held-out set of the run, and `--text` a text in its place. Leave one out.")
    if output is not None:
        check_place("--output", output, folder=True)
        check_new(output)
    learner = learner_of(run, as_json)
    pair = pair_of(learner, since, until)
    search = search_repair(learner, pair, budget, on=on, text=text, blocks=blocks, sure=sure)
    section = of_repair(search)
    files.write_json(run / "repair.json", search.to_json())
    page = write_page(run / "repair.html", f"{learner.recipe.run.name}: where it forgets", [section])
    repaired = None if output is None else save_repaired(learner, pair, search, output)
    folder = None if repaired is None else str(repaired.folder)
    show({**search.to_json(), "folder": folder}, as_json, lambda: Group(*map(terminal_table, section.tables)))
    say(sentences(search), as_json)
    say(f"Page: {page}", as_json)
    say(f"Model: {folder}" if folder else "No model was written: name a folder (`--output`).", as_json)
