"""``everlearn validate``: check everything about a recipe without training."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from everlearn.cli.common import AsJson, Overrides, RecipeFile, file_table, show, telling

if TYPE_CHECKING:
    from rich.console import RenderableType

    from everlearn.data.file_listing import FileGroup
    from everlearn.run.checks import Check


def command(recipe: RecipeFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a recipe, its model, data, methods and disk space without training; exit code 2 if anything fails."""
    from everlearn.commands.validate import corpus_files, preflight

    checks = preflight(recipe, overrides or (), telling(as_json))
    failed = sum(check.ok is False for check in checks)
    files = corpus_files(recipe, overrides or ()) if checks[0].ok else {}
    value = {
        "ok": not failed,
        "notes": [note for check in checks for note in check.notes],
        "checks": [{"name": each.name, "ok": each.ok, "detail": each.detail} for each in checks],
        "files": {name: [asdict(group) for group in groups] for name, groups in files.items()},
    }
    words = [str(recipe), *(overrides or ())]
    show(value, as_json, lambda: _rendered(checks, failed, words, files))
    if failed:
        raise typer.Exit(2)


def _rendered(checks: list[Check], failed: int, words: list[str], files: dict[str, list[FileGroup]]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from everlearn import wording
    from everlearn.run.checks import NOTES

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(justify="right")
    for _ in range(3):
        table.add_column(overflow="fold")  # a long path is broken, not cut
    states = {True: ("ok", "green"), False: ("failed", "bold red"), None: ("not reached", "dim")}
    noted = any(check.name == NOTES and check.ok for check in checks)  # what the other checks have found is shown there
    for number, check in enumerate(checks, 1):
        word, style = ("note", "yellow") if check.ok and (check.notes or (check.warned and noted)) else states[check.ok]
        detail = "see below" if check.notes else check.detail
        table.add_row(f"{number}.", Text(check.name), Text(word, style), Text(detail))
    notes = [Text(f"  {number}. {note}") for number, note in enumerate((n for c in checks for n in c.notes), 1)]
    if notes:
        notes = [Text("To look at before a run", style="bold"), *notes]
    passed = f"Every check passed. Next: {wording.command('plan', *words)}"
    last = f"{failed} of {len(checks)} checks failed." if failed else passed
    return Group(table, *([file_table(files)] if any(files.values()) else []), *notes, Text(last))
