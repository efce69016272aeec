"""Apply ``key=value`` overrides of the command line to a recipe before it is validated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from everlearn.config.reading import read_value
from everlearn.errors import RecipeError

SHORT = {"model": "path", "general": "path"}
"""Groups that may be abbreviated by a string, and the key that it sets."""
EVERY = ".*."
"""Wildcard for all items of a list, in a key that a grid changes: `domains.*.max_documents`."""
Place = tuple[str | int, ...]


def train_of(everywhere: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a domain's training arguments: those of the recipe, overridden by its own."""
    arguments = {**everywhere, **own}
    if "num_train_epochs" in own and "max_steps" not in own:
        arguments.pop("max_steps", None)  # it would override the domain's own number of epochs
    return arguments


def overridden(raw: dict[str, Any], overrides: Iterable[str]) -> dict[Place, str]:
    """Apply all overrides to a recipe in place.

    Args:
        raw: the recipe as in its file; changed in place.
        overrides: dotted keys with YAML values. Items of a list are named by position or by the name of the item.

    Returns:
        Each place that was set, with the text of its value: if the recipe expects text there, `2024` is text.

    Raises:
        RecipeError: an override is malformed, names a missing item, or is repeated.
    """
    texts: dict[Place, str] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w[\w-]*(\.[\w-]+)*", key):
            raise RecipeError(f"'{text[:80]}' is no override: write key=value, for example train.max_steps=100.")
        place = _place(raw, key)
        if place in texts:
            raise RecipeError(f"The override `{key}` is given twice. Remove one of them.")
        texts[place] = value
        put_at(raw, place, read_value(value, key) if value else None)
    return texts


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in plain data; an item of a list by its position or its name, every item by ``*``.

    Raises:
        RecipeError: a list has no such item, or the parent is neither a list nor a mapping.
    """
    group, every, inside = key.partition(EVERY)
    for number in range(len(raw[group])) if every else ():
        put(raw, f"{group}.{number}.{inside}", value)
    if not every:
        put_at(raw, _place(raw, key), value)


def put_at(raw: Any, place: Place, value: Any) -> None:
    """Set the value at a place in nested lists and mappings."""
    *parents, last = place
    for part in parents:
        raw = raw[part]
    raw[last] = value


def named_methods(value: Any) -> list[Any]:
    """Return the methods of a recipe as mappings; a string is the name of a method."""
    listed = value if isinstance(value, list | tuple) else [value]
    return [{"name": item} if isinstance(item, str) else item for item in listed]


def _place(raw: dict[str, Any], key: str) -> Place:
    """Resolve a dotted key; create missing parents, and expand names that abbreviate a mapping."""
    first, *rest = parts = key.split(".")
    if rest and first == "method":
        raw["method"] = named_methods(raw.get("method") or [])
        if len(raw["method"]) == 1 and not _is_item(raw["method"], rest[0]):
            parts = [first, "0", *rest]
    elif isinstance(raw.get(first), str) and first in SHORT:
        raw[first] = {SHORT[first]: raw[first]} if rest else raw[first]
    at: Any = raw
    place: list[str | int] = []
    for part in parts:
        if not isinstance(at, dict | list):
            raise RecipeError(f"Override '{key}': there is nothing below {at!r}, so nothing called '{part}'.")
        place.append(_index(at, part, key) if isinstance(at, list) else part)
        if len(place) < len(parts):
            if isinstance(at, dict) and at.get(part) is None:
                at[part] = {}
            at = at[place[-1]]
    return tuple(place)


def _is_item(items: list[Any], part: str) -> bool:
    return (part.isascii() and part.isdecimal()) or part in _names(items)


def _index(items: list[Any], part: str, key: str) -> int:
    if part.isascii() and part.isdecimal() and len(part) < 10 and int(part) < len(items):
        return int(part)
    if part in _names(items):
        return _names(items).index(part)
    raise RecipeError(f"Override '{key}': '{part}' is neither a position below {len(items)} nor a name in the list.")


def _names(items: list[Any]) -> list[Any]:
    return [item.get("name") if isinstance(item, dict) else None for item in items]
