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

    An option of a method is named if rows with the same methods differ in it, a key of the recipe if any rows do. A row
    with a title of its own keeps it. Rows whose short titles would be the same keep their titles.
    """
    rows = {cell.grid.row: cell for cell in cells}
    titles = {row: cell.grid.title for row, cell in rows.items()}
    # With equal compute each method has steps of its own; they are named where nothing else tells rows apart.
    for silent in ((), (STEPS,)):
        short = {row: _short(cell, list(rows.values()), silent) for row, cell in rows.items()}
        count = Counter(short.values())
        titles |= {row: title for row, title in short.items() if count[title] == 1}
    return [_titled(cell, titles[cell.grid.row]) for cell in cells]


def _titled(cell: Run, title: str) -> Run:
    return replace(cell, title=title, results=cell.results | {"grid": cell.results["grid"] | {"title": title}})


def _short(cell: Run, rows: Sequence[Run], silent: Container[str] = ()) -> str:
    """Return the short title of a row, given a cell of each row; keys of the recipe in `silent` are not named."""
    methods = _methods(cell)
    if not methods or not re.fullmatch(_described(methods), cell.grid.title):
        return cell.grid.title
    twins = [other for other in map(_methods, rows) if _names(other) == _names(methods)]
    parts = [_apart(method, [twin[place] for twin in twins]) for place, method in enumerate(methods)]
    own, others = _changes(cell), [_changes(other) for other in rows]
    keys = [key for key in own if key not in silent and any(other.get(key) != own[key] for other in others)]
    return " · ".join([" + ".join(parts), *(f"{key.removeprefix('train.')} {_said(own[key])}" for key in keys)])


def _methods(cell: Run) -> list[Method]:
    return list(cell.results.get("methods") or [])


def _names(methods: Sequence[Method]) -> list[str]:
    return [method["name"] for method in methods]


def _apart(method: Method, twins: Sequence[Method]) -> str:
    """Return a method's title, with the options in which it differs from the same method in other rows."""
    options = method["options"]
    said = [
        f"{key} {_said(value)}"
        for key, value in options.items()
        if any(twin["options"].get(key, value) != value for twin in twins)
    ]
    return f"{method['title']} ({', '.join(said)})" if said else str(method["title"])


def _described(methods: Sequence[Method]) -> str:
    """Return a pattern of titles that say nothing but methods, their options, and changed keys of the recipe."""
    return r" \+ ".join(re.escape(method["title"]) + r"(?: \(.*\))?" for method in methods) + r"(?: · .*)?"


def _changes(cell: Run) -> dict[str, Any]:
    """Return the keys of the recipe that the row changes."""
    return {key: value for key, value in cell.grid.options.items() if "." in key}


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
