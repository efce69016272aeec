"""``everlearn env``: versions and hardware, for bug reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everlearn import plugins
from everlearn.cli.common import AsJson, say, show

if TYPE_CHECKING:
    from rich.table import Table


def command(as_json: AsJson = False) -> None:
    """Show versions and hardware, for bug reports."""
    from everlearn.run.environment import environment

    facts = environment()
    show(facts, as_json, lambda: _table(facts))
    if plugins.is_stale():
        say(plugins.STALE, as_json)


def _table(facts: dict[str, Any]) -> Table:
    from rich.table import Table

    from everlearn.wording import size

    shown = {**facts, **facts["packages"]}
    shown["memory"] = size(facts["memory_bytes"]) if facts["memory_bytes"] else "unknown"
    table = Table(show_header=False, box=None)
    for name, value in shown.items():
        if name not in ("packages", "memory_bytes", "command"):
            table.add_row(name, ", ".join(value) or "none" if isinstance(value, list) else str(value))
    return table
