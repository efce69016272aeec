"""``everlearn plan``: estimate the cost of a run before it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, Overrides, RecipeFile, empty_table, show, telling

if TYPE_CHECKING:
    from rich.console import RenderableType

    from everlearn.commands.plan import Plan


def command(
    recipe: RecipeFile,
    overrides: Overrides = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Time a few training steps on this machine.")
    ] = True,
    devices: Annotated[
        int | None,
        typer.Option("--devices", min=1, metavar="N", help="Plan for a machine with N devices; no steps are timed."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Say whether the run fits devices of this memory (80GB); exit code 2 if not. No steps are timed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate the cost of a run: tokens, steps, memory, disk and time, with and without the methods."""
    from everlearn.commands.memory_verdict import bytes_of
    from everlearn.commands.plan import make_plan
    from everlearn.config.recipe import load

    reporter = telling()
    size = None if memory is None else bytes_of(memory)
    plan = make_plan(
        load(recipe, overrides or ()),
        measure=measure and devices is None and size is None,
        reporter=reporter,
        devices=devices,
        memory=size,
    )
    show(plan.to_json(), as_json, lambda: _rendered(plan))
    if plan.verdict is not None and not plan.verdict.fits:
        raise typer.Exit(2)


def _rendered(plan: Plan) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    numbers = ("Documents", "Tokens", "Rows", "Steps", "Rows a step", "Tokens learnt", "Passes")
    domains = empty_table("Domains", ("Domain",), numbers)
    for domain in plan.domains:
        domains.add_row(Text(domain.name), *domain.cells())
    costs = Table(title="Cost", title_justify="left", show_header=False)
    for name, value in plan.lines():
        costs.add_row(name, Text(value))
    verdict = [] if plan.verdict is None else [Text(plan.verdict.sentence, style="bold"), Text("")]
    return Group(*verdict, domains, Text(""), costs, *(Text(f"Note: {note}") for note in plan.notes))
