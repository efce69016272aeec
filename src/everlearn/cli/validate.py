"""``everlearn validate``: check everything about a recipe without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from everlearn.cli.common import AsJson, Overrides, RecipeFile, show

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from everlearn.run.checks import Check


def command(recipe: RecipeFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a recipe, its model, data, methods and disk space without training; exit code 2 if anything fails."""
    from everlearn.commands.validate import preflight
    from everlearn.model.loading import quiet

    quiet()
    checks = preflight(recipe, overrides or ())
    failed = sum(check.ok is False for check in checks)
    value = {
        "ok": not failed,
        "notes": [note for check in checks for note in check.notes],
        "checks": [{"name": each.name, "ok": each.ok, "detail": each.detail} for each in checks],
    }
    show(value, as_json, lambda: _rendered(checks, failed, recipe))
    if failed:
        raise typer.Exit(2)


def _rendered(checks: list[Check], failed: int, recipe: Path) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(justify="right")
    for _ in range(3):
        table.add_column(overflow="fold")  # a long path is broken, not cut
    words = {True: ("ok", "green"), False: ("failed", "bold red"), None: ("not reached", "dim")}
    for number, check in enumerate(checks, 1):
        word, style = ("note", "yellow") if check.notes else words[check.ok]
        detail = "see below" if check.notes else check.detail
        table.add_row(f"{number}.", Text(check.name), Text(word, style), Text(detail))
    notes = [Text(f"  {number}. {note}") for number, note in enumerate((n for c in checks for n in c.notes), 1)]
    if notes:
        notes = [Text("To look at before a run", style="bold"), *notes]
    passed = f"Every check passed. Next: everlearn plan {recipe}"
    last = f"{failed} of {len(checks)} checks failed." if failed else passed
    return Group(table, *notes, Text(last))
