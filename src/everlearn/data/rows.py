"""Define the row that every reader yields, with the position of the next one, and what a column of it may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everlearn.data.text_files import Limits
from everlearn.errors import DataError


class Row(NamedTuple):
    """One row of a file: its values, where it is (for errors), and where the next one starts."""

    values: Mapping[str, Any]
    where: str
    next_row: int
    next_offset: int


Reader = Callable[[Path, Sequence[str], int, int, Limits], Iterator[Row]]
"""(path, wanted columns, row to start at, its byte offset, limits) → rows. Rows may have more columns than the wanted
ones; a table that lacks a wanted column yields a single row with the names of its columns."""


def refuse_repeated(path: Path, names: Sequence[str], columns: Sequence[str]) -> None:
    """Raise ``DataError`` if a requested column occurs more than once in a table."""
    for column in columns:
        if (count := list(names).count(column)) > 1:
            raise DataError(f"{path} has the column '{column}' {count} times; rename or remove all but one.")


def text_in(value: object, column: str, where: str) -> str:
    """Return the text in a column of a row; "" for null.

    Raises:
        DataError: it is no text.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        inner, _ = next(texts_inside(value, column), ("", ""))
        advice = f" Name a text inside it, in braces: `{{{inner}}}`." if inner else ""
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            advice = (
                " Lists of messages are chats: name their column in `messages_column`, or `row_format` for their kind."
            )
        raise DataError(
            f"{where}: column '{column}' must hold text; it holds {type(value).__name__} ({str(value)[:40]}).{advice}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can carry and UTF-8 cannot.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def texts_inside(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Yield the texts inside a mapping, at any depth, each after its dotted name, which begins with `name`."""
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if isinstance(inner, str):
            yield f"{name}.{key}", inner
        else:
            yield from texts_inside(inner, f"{name}.{key}")
