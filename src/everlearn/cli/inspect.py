"""``everlearn inspect``: show the units of a model and what a method would protect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from everlearn.cli.common import AsJson, empty_table, show
from everlearn.wording import percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from everlearn.commands.inspect_model import Inspection


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id or folder; only its configuration is read.")],
    method: Annotated[
        list[str] | None,
        typer.Option("--method", help="Also show what this method would protect and cost; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the units of a model (heads, neurons, outputs) and which parameters methods can protect."""
    from everlearn.commands.inspect_model import inspect
    from everlearn.model.loading import quiet

    quiet()
    inspection = inspect(model, method or ())
    show(inspection.to_json(), as_json, lambda: _rendered(inspection))


def _rendered(inspection: Inspection) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    units = empty_table("Units", ("Layer", "Kind"), ("Units", "Features each", "Parameters that belong to them"))
    for layers, kind, count, width, owned in inspection.unit_rows():
        units.add_row(layers, kind, f"{count:,}", str(width), f"{owned:,}")
    reached = ("Reached by unit masks", "Reached by row masks")
    groups = empty_table("Parameters", ("Group",), ("Parameters", "Share", *reached))
    for name, count, share, by_units, by_rows in inspection.group_rows():
        groups.add_row(name, f"{count:,}", percent(share), by_units, by_rows)
    parts: list[RenderableType] = [Text(inspection.headline()), units, Text(""), groups]
    for cost in inspection.costs:
        parts.append(Text(f"{cost.name}: {cost.sentence()}"))
    return Group(*parts)
