"""``everlearn methods``: list the methods, their requirements and options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from everlearn.cli.common import AsJson, empty_table, show

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


def names(incomplete: str) -> list[str]:
    """Return the method names for shell completion."""
    from everlearn.commands.known import method_names

    return [name for name in method_names() if name.startswith(incomplete)]


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show this method and its options.", autocompletion=names),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods and their requirements; with a name, its options, their defaults and what they mean."""
    from everlearn.commands import known

    if name is None:
        everything = known.methods()
        show(everything, as_json, lambda: _Capabilities(everything))
    else:
        one = known.method(name)
        show(one, as_json, lambda: _page(one))


WIDE = 150
"""Terminal width for the complete table; on a narrower one several properties share a column."""


class _Capabilities:
    """The methods as a table, as wide as the terminal allows."""

    def __init__(self, described: list[dict[str, Any]]) -> None:
        self.rows = [_capabilities(entry) for entry in described]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        rows = self.rows if options.max_width >= WIDE else [_narrow(row) for row in self.rows]
        table = Table(*rows[0])
        for column in table.columns:
            column.no_wrap, column.overflow = column.header in ("Name", "Paper"), "fold"
        table.columns[1].min_width = max(len(word) for row in rows for word in row["Method"].split())
        for row in rows:
            table.add_row(*row.values())
        yield table


def _capabilities(entry: dict[str, Any]) -> dict[str, str]:
    needs = entry["needs"]
    return {
        "Name": entry["name"],
        "Method": entry["title"],
        "Kind": ", ".join(entry["kinds"]) or "–",
        "Needs or adds": _needed(entry) or "–",
        "Memory": "–" if entry["memory"] == "nothing" else entry["memory"],
        "With PEFT": "yes" if needs["peft"] else "–",
        "Objectives": "all" if len(needs["objectives"]) == 3 else ", ".join(needs["objectives"]),
        "Paper": _cited(entry["paper"]),
    }


def _narrow(row: dict[str, str]) -> dict[str, str]:
    """Reduce a row to three columns: the title with the paper below it, and all other properties in one column."""
    rest = [
        row["Kind"],
        *([row["Needs or adds"]] if row["Needs or adds"] != "–" else []),
        *([f"keeps {row['Memory']}"] if row["Memory"] != "–" else []),
        *(["no PEFT"] if row["With PEFT"] == "–" else []),
        *([row["Objectives"]] if row["Objectives"] != "all" else []),
    ]
    title = f"{row['Method']}\n{row['Paper']}"
    return {"Name": row["Name"], "Method": title, "Kind; needs or adds; memory": "; ".join(rest)}


def _needed(entry: dict[str, Any]) -> str:
    """Return what a method needs or adds, except whether PEFT adapters are supported."""
    from everlearn.commands.saved_tables import CAPABILITIES

    return ", ".join(label.lower() for key, label in CAPABILITIES.items() if entry["needs"][key] and key != "peft")


def _cited(paper: str) -> str:
    """Shorten the address of a paper for a table; the page of a method has it in full."""
    where, _, what = paper.rstrip("/").rpartition("/")
    return f"arXiv:{what}" if where.endswith("arxiv.org/abs") else what or "–"


def _page(entry: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from everlearn.commands.yaml_text import value_text

    table = empty_table("Options", ("Option", "Type", "Default", "Meaning"))
    for option in entry["options"]:
        default = "required" if option["required"] else value_text(option["default"])
        table.add_row(option["name"], Text(option["type"]), Text(default), Text(option["description"]))
    of = entry["variant_of"]
    parts: list[RenderableType] = [
        Text(f"{entry['name']}: {entry['title']}" + (f" (a variant of {of})" if of else ""), style="bold"),
        *([Text(f"In short: {entry['summary']}.")] if entry["summary"] else []),
        Text(entry["paper"]) if entry["paper"] else Text(""),
        Text(entry["description"] + "\n"),
        Text(f"Kind: {', '.join(entry['kinds']) or 'not given'}"),
        Text(f"Needs or adds: {_needed(entry) or 'nothing'}"),
        Text(entry["reveals"]),
        Text(f"Works on a model with PEFT adapters: {'yes' if entry['needs']['peft'] else 'no'}"),
        Text(f"Objectives: {', '.join(entry['needs']['objectives'])}\n"),
    ]
    return Group(*parts, table if entry["options"] else Text("It has no options."))
