"""Define the row that every reader yields, with the position of the next one."""

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
