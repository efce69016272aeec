"""``everlearn bench``: methods × orders × seeds on a suite, one result per run, one table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlearn import plugins
from everlearn.cli.common import AsJson, Quiet, show, telling
from everlearn.cli.grids import Budget, KeepModels, OnlyShow, Output, Showing, check_outputs, show_grid

if TYPE_CHECKING:
    from everlearn_bench.suites import Suite

FETCH = "fetch"
"""Value of `--data` that downloads the data."""

HEADING = "Run"


def command(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help=f"The suite: {', '.join(plugins.names('suites'))}.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Keys of the suite's recipe: train.max_steps=100, end_tasks.*.max_test=300, domains.NAME.path=FILE; "
            "also grid.methods.NAME.OPTION and the suite's own keys, suite.KEY.",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods and variants by our names or the paper's, separated by commas; also `constant` "
            "(the most frequent label), `none` (the base model), `separate` or `per_task` (one model per domain), "
            "`pool` or `mtl` (all domains at once), or a group of the suite: `all` (the paper's table, and "
            "`constant`); in six-domains `ablations` (of DAS) and `relatives`; in suites of tasks `migu-pairs`."
        ),
    ] = None,
    orders: Annotated[
        str | None,
        typer.Option(
            help="Numbers or names of the suite's orders, separated by commas (for m2d2 `similar`, `swapped`, "
            "`random-1`, `file`); default: its first one."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds separated by commas.")] = "0,1,2",
    budget: Budget = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER|fetch",
            help="Folder with the suite's data; `fetch` downloads what can be fetched into the cache, where later "
            "calls find it (a folder of that name is ./fetch), and runs nothing without `--methods`. Tasks "
            "(standard-cl, long-sequence) also have `hub`: examples sampled from datasets of the Hugging Face "
            "hub.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Hub id or folder of the base model.")] = None,
    run_code: Annotated[
        bool | None,
        typer.Option(
            "--run-code/--no-run-code",
            help="Run programs that the model writes in a sandbox, or skip them (code).",
        ),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file with a part of a recipe, which is laid over that of the suite."),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder with one JSON file per run, or their archive; default: bench/SUITE.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="Folder of unfinished runs; default: runs/bench-SUITE.")] = None,
    keep: KeepModels = False,
    only_show: OnlyShow = False,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Row with which the others are compared; default: plain training, "
            "else the base model, else the first row."
        ),
    ] = None,
    output: Output = None,
    claims: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge the claims of the suite's paper, as a Markdown page.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the missing combinations of methods, orders and seeds on a suite, and show all of them in one table."""
    from everlearn.errors import RecipeError
    from everlearn.grid import Grid, load_results, read_seeds, resolve
    from everlearn.run.writable import check_place
    from everlearn_bench.claims.page import write_claims
    from everlearn_bench.suites import find_suite, read_overlay
    from everlearn_bench.suites.fetching import fetch

    reporter = telling(quiet)
    check_outputs(output)
    chosen = find_suite(suite)
    changes = list(overrides or ())
    if run_code is not None:
        changes += [f"end_tasks.{task}.run_code={str(run_code).lower()}" for task in chosen.programs()]
    overlay = read_overlay(settings, changes, model=model, tokens=budget)
    if data is not None and str(data) == FETCH and not only_show:
        data = fetch(chosen, reporter.say, overlay)
        if methods is None:
            show({"data": str(data)}, as_json, lambda: f"The data of {suite} is in {data}.")
            return
    entries = resolve(_words(methods), chosen) if methods is not None else []
    against = resolve([reference], chosen, "--reference")[0].name if reference else None
    place, working = results or Path("bench") / suite, runs or Path("runs") / f"bench-{suite}"
    # A part of the results must not replace the page of all.
    pages = output or ([] if only_show and entries else [place / "index.html"])
    if not only_show:
        if not entries:
            raise RecipeError("`everlearn bench` needs `--methods`, for example --methods sequential,das,ewc.")
        check_place("--results", place, folder=True)
        check_place("--runs", working, folder=True)
    # Read-only results can be shown: it is no error that their page cannot be written.
    optional = only_show and not output
    for file in () if optional else pages:
        check_place("--output", file)
    if claims is not None:
        check_place("--claims", claims)
    states = []
    if only_show and data is not None and str(data) != FETCH and (there := load_results(place)):
        chosen = chosen.on(replace(overlay, suite=there[0].grid.settings.get("suite", {})), data)
    if not only_show:
        chosen = chosen.on(overlay, data)
        grid = Grid(
            chosen,
            entries,
            _numbers(orders, chosen) if orders is not None else [min(chosen.orders)],
            read_seeds(seeds),
            place,
            working,
            keep=keep,
            reporter=reporter,
        )
        grid.check()
        if chosen.report is not None:
            telling(quiet).say(f"What became of the text of the domains: {chosen.report}")
        states = grid.run()

    def judged() -> list[Path]:
        if claims is None:
            return []
        write_claims(chosen, place, claims)
        return [claims]

    shown = [entry.name for entry in entries] if only_show else []
    show_grid(chosen, place, states, Showing(pages, optional, against, shown, only_show, quiet, as_json), judged)


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word.strip()]


def _numbers(text: str, suite: Suite) -> list[int]:
    from everlearn.errors import RecipeError, did_you_mean

    names, words = suite.order_names, [word.strip() for word in _words(text)]
    wrong = next((word for word in words if word not in names and not word.isdigit()), None)
    if wrong is not None and names:
        raise RecipeError(
            f"`--orders` names '{wrong}', which is not an order of `{suite.name}`: give names or numbers, with commas."
            f"{did_you_mean(wrong, names)}"
        )
    if wrong is not None or not words:
        raise RecipeError(f"`--orders` is '{text}', but must be numbers with commas, for example 0,1.")
    return [names[word] if word in names else int(word) for word in words]
