"""``everlearn sweep``: methods × settings × orders × seeds on your own recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everlearn.cli.common import AsJson, Overrides, Quiet, RecipeFile, telling
from everlearn.cli.grids import (
    Budget,
    DryRun,
    KeepModels,
    OnlyShow,
    Output,
    Showing,
    check_outputs,
    show_dry_run,
    show_grid,
)


def command(
    recipe: RecipeFile,
    overrides: Overrides = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods separated by commas: sequential,ewc:strength=10, in brackets those that are combined: "
            "'ewc,\\[ewc,replay:share=0.1]'; also `none` (the base model), `separate` (one model per domain), `merged` "
            "(their mean), `cumulative` (each domain with all before it), `pool` (all domains at once), and "
            "`scenarios`, which is all of these and plain training. Default: that of the recipe."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds separated by commas: 1,2,3. Default: that of the recipe.")
    ] = None,
    orders: Annotated[
        str,
        typer.Option(
            help="Orders of the domains: 'a,b,c;c,b,a', `given`, `all`, `random:3`, or by the difficulty that a run "
            "has measured: `easy-first:RUN`, `hard-first:RUN` (bits per byte of the base model), "
            "`easy-first-alone:RUN`, `hard-first-alone:RUN` (of a model trained on the domain only: "
            "`evaluation.alone`)."
        ),
    ] = "given",
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=V1,V2",
            help="Try each of these values: train.learning_rate=1e-4,3e-4 or method.migu.threshold=0,0.7 or "
            "domains.*.max_documents=100,1000 (of every domain); repeatable.",
        ),
    ] = None,
    budget: Budget = None,
    equal_compute: Annotated[
        bool,
        typer.Option(
            "--equal-compute",
            help="Reduce the steps of methods by their additional passes (Fisher information, a teacher, generated "
            "text), so that every row takes as much compute as plain training.",
        ),
    ] = False,
    results: Annotated[
        Path | None, typer.Option(help="Folder with one JSON file per run, or their archive; default: sweep/NAME.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="Folder of the runs; default: runs/sweep-NAME.")] = None,
    keep: KeepModels = False,
    only_show: OnlyShow = False,
    dry_run: DryRun = False,
    reference: Annotated[
        str | None, typer.Option(help="Row with which the others are compared; default: plain training.")
    ] = None,
    output: Output = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare methods and settings on your own recipe: run the missing combinations, write one page."""
    from everlearn.config.recipe import load
    from everlearn.errors import RecipeError, did_you_mean
    from everlearn.grid import Grid, RecipeTemplate, equalised, read_orders, read_seeds, read_variations
    from everlearn.grid.equal_compute import steps_of_sweep
    from everlearn.grid.runs import RunFactory
    from everlearn.run.writable import check_place

    reporter = telling(quiet)
    check_outputs(output)
    own = load(recipe, overrides or ())
    if budget is not None:
        steps = steps_of_sweep(budget, own, sets or ())
        own = load(recipe, [*(overrides or ()), f"train.max_steps={steps}"])
    # The name is that of the run in the recipe, or else that of the file.
    name = own.run.name if "name" in own.run.model_fields_set else recipe.stem
    template = RecipeTemplate(own, name, read_orders(orders, [domain.name for domain in own.domains]))
    entries = read_variations(methods, sets or (), template)
    if equal_compute and not only_show:
        entries = equalised(entries, RunFactory(template, runs or Path("runs") / f"sweep-{name}"))
    against = [entry.name for entry in entries]
    if reference is not None and reference not in against:
        raise RecipeError(f"`--reference` is '{reference}', which is not a row.{did_you_mean(reference, against)}")
    place, working = results or Path("sweep") / name, runs or Path("runs") / f"sweep-{name}"
    pages = output or [place / "index.html"]
    check_place("--results", place, folder=True)
    check_place("--runs", working, folder=True)
    for file in pages:
        check_place("--output", file)
    grid = Grid(
        template,
        entries,
        list(template.orders),
        read_seeds(seeds) if seeds is not None else [own.run.seed],
        place,
        working,
        keep=keep,
        reporter=reporter,
    )
    if not only_show:
        grid.check()
    if dry_run:
        show_dry_run(grid, as_json)
        return
    states = grid.states() if only_show else grid.run()
    show_grid(
        template,
        place,
        states,
        Showing(pages, False, reference, (), only_show, quiet, as_json),
        runs=working,
    )
