"""Templates that make one text of several columns, or of values inside a column: `{title}\\n\\n{document.body}`."""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping
from typing import Any, NamedTuple

from everlearn.errors import DataError


class Placeholder(NamedTuple):
    """Fixed text, and the value after it.

    Attributes:
        before: the fixed text.
        path: the column, and the names inside its value; empty if no value follows.
    """

    before: str
    path: tuple[str, ...]


def is_template(column: str) -> bool:
    """Return whether the name of a column is a template: it has braces."""
    return "{" in column or "}" in column


@functools.cache
def parts_of(template: str) -> tuple[Placeholder, ...]:
    """Return the parts of a template.

    Raises:
        ValueError: it is not well formed.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"'{template}' is no template ({error}): write `{{column}}`, and `{{{{` for a brace") from None
    parts = []
    for before, name, spec, conversion in parsed:
        path = () if name is None else tuple(name.split("."))
        if spec or conversion or not all(path):
            raise ValueError(f"'{template}' has a value without a name, or with a format: write `{{column}}` alone")
        parts.append(Placeholder(before, path))
    return tuple(parts)


def columns_in(template: str) -> tuple[str, ...]:
    """Return the columns that a template reads, each once.

    Raises:
        ValueError: it is not well formed.
    """
    return tuple(dict.fromkeys(part.path[0] for part in parts_of(template) if part.path))


def filled(template: str, values: Mapping[str, Any], where: str) -> str:
    """Return the text of a row; empty if all its values are.

    Args:
        template: the template, as in a recipe.
        values: column → value.
        where: the row, for errors.

    Raises:
        DataError: a value is no text or number, or a name is looked for in something that has no names.
    """
    texts = [_text(part.path, values, where) for part in parts_of(template)]
    if not any(text.strip() for text in texts):
        return ""
    return "".join(part.before + text for part, text in zip(parts_of(template), texts, strict=True))


def value_at(path: tuple[str, ...], values: Mapping[str, Any], where: str) -> Any:
    """Return a value in a column; None if it is missing.

    Args:
        path: the column, and the names inside its value.
        values: column → value.
        where: the row, for errors.

    Raises:
        DataError: a name is looked for in something that has no names.
    """
    value: Any = values
    for place, name in enumerate(path):
        if value is None:
            break
        if not isinstance(value, Mapping):
            raise DataError(
                f"{where}: `{{{'.'.join(path)}}}`: '{'.'.join(path[:place])}' holds {type(value).__name__} "
                f"({value!r:.40}), which has no '{name}' in it."
            )
        value = value.get(name)
    return value


def _text(path: tuple[str, ...], values: Mapping[str, Any], where: str) -> str:
    value = value_at(path, values, where) if path else None
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(
            f"{where}: `{{{'.'.join(path)}}}` must be a text or a number; it is {type(value).__name__} ({value!r:.40})."
        )
    return str(value)
