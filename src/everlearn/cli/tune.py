"""``everlearn tune``: find the learning rate and the strength of methods by short runs of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import AsJson, Overrides, Quiet, RecipeFile, say, show, telling


def command(
    recipe: RecipeFile,
    overrides: Overrides = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials for plain training, and for each method.")] = 8,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods separated by commas, as in sweep: 'mas,ewc,\\[ewc,replay:share=0.1]'. Default: that of the "
            "recipe. Plain training is always included."
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the recipe's steps that a trial takes.")] = 0.25,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Start no round of trials after this number of minutes, counted over all calls; one always runs.",
        ),
    ] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the search; default: tune/NAME.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The recommended recipe; default: recipe.yaml in --results."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find a learning rate and a method's strength by short runs, and write the recipe with them."""
    from rich.console import Group
    from rich.text import Text

    from everlearn.config.recipe import load
    from everlearn.files import write_text
    from everlearn.report.tables import terminal_table
    from everlearn.run.writable import check_place
    from everlearn.tuning import page
    from everlearn.tuning.search import Tuner

    reporter = telling(quiet or as_json)
    base_recipe = load(recipe, overrides or ())
    name = base_recipe.run.name if "name" in base_recipe.run.model_fields_set else recipe.stem
    place = results or Path("tune") / name
    target = output or place / "recipe.yaml"
    check_place("--results", place, folder=True)
    check_place("--output", target)
    outcome = Tuner(base_recipe, place, methods, trials, share, reporter).run(minutes)
    written = page.write(outcome, place)
    show(
        page.as_data(outcome),
        as_json,
        lambda: Group(terminal_table(page.tables(outcome)[0]), Text(""), Text(" ".join(page.verdict(outcome)))),
    )
    if outcome.chosen is not None and outcome.chosen.score > 0:
        write_text(target, page.recommended(outcome, outcome.chosen))
        say(f"Recipe: {target}", as_json)
    elif output is None:
        target.unlink(missing_ok=True)  # of an earlier call with fewer trials
    say(f"Page: {written}", as_json)
