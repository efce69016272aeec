"""Shorten the titles of rows, which name every option that was given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everlearn.comparison.runs import Run
from everlearn.grid.equal_compute import STEPS

Method = Mapping[str, Any]
"""A method as results record it: name, title, all options."""


def relabelled(cells: Sequence[Run]) -> list[Run]:
    """Return the cells of a grid with short titles: the methods, and what sets a row apart from the others.

    Of what a title names, an option of a method stays if rows with the same methods differ in it, a key of the recipe
    if any rows do. A row with a title of its own keeps it. Rows whose short titles would be the same keep their titles.
    """
    rows = {cell.grid.row: cell for cell in cells}
    titles = {row: cell.grid.title for row, cell in rows.items()}
    parts = {row: _short(cell, list(rows.values())) for row, cell in rows.items()}
    # With equal compute each method has steps of its own; they are named where nothing else tells rows apart.
    for silent in ("", STEPS.removeprefix("train.")):
        short = {
            row: " · ".join([methods, *(pair for pair in changes if pair.partition(" ")[0] != silent)])
            for row, (methods, changes) in parts.items()
        }
        count = Counter(short.values())
        titles |= {row: title for row, title in short.items() if count[title] == 1}
    return [_titled(cell, titles[cell.grid.row]) for cell in cells]


def _titled(cell: Run, title: str) -> Run:
    return replace(cell, title=title, results=cell.results | {"grid": cell.results["grid"] | {"title": title}})


def _short(cell: Run, rows: Sequence[Run]) -> tuple[str, list[str]]:
    """Return the parts of a row's short title, given a cell of each row: its methods, and keys of the recipe."""
    methods = _methods(cell)
    title = re.fullmatch(_described(methods), cell.grid.title)
    if not methods or title is None:
        return cell.grid.title, []
    twins = [other for other in map(_methods, rows) if _names(other) == _names(methods)]
    parts = []
    for place, (method, options_text) in enumerate(zip(methods, title.groups(), strict=False)):
        own = _kept(options_text, _apart(method, [twin[place] for twin in twins]))
        parts.append(f"{method['title']} ({', '.join(own)})" if own else str(method["title"]))
    changes, others = _changes(cell), [_changes(other) for other in rows]
    apart = {key for key in changes if any(other.get(key) != changes[key] for other in others)}
    keys = {key.removeprefix("train.") for key in apart}
    return " + ".join(parts), _kept(title.groups()[-1].replace(" · ", ", "), keys)


def _methods(cell: Run) -> list[Method]:
    return list(cell.results.get("methods") or [])


def _names(methods: Sequence[Method]) -> list[str]:
    return [method["name"] for method in methods]


def _apart(method: Method, twins: Sequence[Method]) -> set[str]:
    """Return the options in which a method differs from the same method in other rows."""
    options = method["options"].items()
    return {key for key, value in options if any(twin["options"].get(key, value) != value for twin in twins)}


def _kept(options_text: str | None, keys: Container[str]) -> list[str]:
    """Return those of "option value, option value" whose option is one of the keys."""
    pairs = re.split(r", (?=[\w.*]+ )", options_text) if options_text else []
    return [pair for pair in pairs if pair.partition(" ")[0] in keys]


def _described(methods: Sequence[Method]) -> str:
    """Return a pattern of titles that say nothing but methods, their options, and changed keys of the recipe."""
    return r" \+ ".join(re.escape(method["title"]) + r"(?: \((.*)\))?" for method in methods) + r"((?: · .*)?)"


def _changes(cell: Run) -> dict[str, Any]:
    """Return the keys of the recipe that the row changes."""
    return {key: value for key, value in cell.grid.options.items() if "." in key}
