"""Read rows from JSON: one object per line, or one array of objects, which is parsed item by item."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.data.rows import Row
from everlearn.data.text_files import Limits, lines, pieces, text_of, too_long
from everlearn.errors import DataError

BLANK = " \t\n\r"
"""Characters that may separate two values."""
CUT = 16
"""A parse error so close to the end of the text read so far, in characters, may only mean that a value is incomplete
there (`-Infinity`)."""


class _Objects:
    """Parse JSON objects, and detect requested names that occur twice in an object."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self._names: list[str] = []
        self.decoder = json.JSONDecoder(object_pairs_hook=self._mapping)

    def _mapping(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        # An object comes after those inside it, so what is here at the end belongs to the outermost.
        self._names = [name for name, _ in pairs] if len(values) < len(pairs) else []
        return values

    def checked(self, value: Any, where: str) -> Mapping[str, Any]:
        """Return the value; it must be an object that has no wanted column twice."""
        if not isinstance(value, dict):
            raise DataError(f"{where} is not a JSON object with named columns but {type(value).__name__}.")
        for column in self.columns:
            if self._names.count(column) > 1:
                raise DataError(f"{where} has the column '{column}' {self._names.count(column)} times; keep one.")
        return value


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where} is not JSON that can be read: {error}.")


_SQUAD = (
    ".data[].paragraphs[] | .context as $c | .qas[] | {context: $c, question, answers: [.answers[].text]}",
    "question-answers",
)
"""The `jq` program that extracts the questions from SQuAD's layout, and the format of the resulting rows."""


def rows_inside(value: Mapping[str, Any], path: Path) -> str:
    """Return advice on extracting the rows from an object; "" if it holds none.

    The object wraps a list of rows, as in `{"data": [{…}, {…}]}`, or maps each column to its values by row, as pandas
    writes it.
    """
    if value and all(isinstance(column, dict) and "0" in column for column in value.values()):
        return (
            "Its columns are those of a pandas data frame. Write a row a line: "
            f"`pandas.read_json('{path}').to_json('rows.jsonl', orient='records', lines=True)`."
        )
    lists = {
        name: inner
        for name, inner in value.items()
        if isinstance(inner, list) and inner and all(isinstance(each, dict) for each in inner)
    }
    if not lists:
        return ""
    name = max(lists, key=lambda each: len(lists[each]))
    program, form = f".{name}[]" if name.isidentifier() else f".{json.dumps(name)}[]", ""
    if name == "data" and all("paragraphs" in each for each in lists[name]):
        program, form = _SQUAD[0], f"; `row_format: {_SQUAD[1]}` reads them"
    return (
        f"The rows are inside '{name}'. Write each on a line of its own: `jq -c '{program}' {path} > rows.jsonl`{form}."
    )


def _in_one_object(path: Path, limits: Limits) -> str:
    """Return advice on extracting the rows from a file that is one object over several lines; "" if it is not."""
    try:
        value = json.loads(text_of(path, limits)) if path.stat().st_size <= limits.row_bytes else None
    except (DataError, ValueError, RecursionError):
        return ""
    return rows_inside(value, path) if isinstance(value, dict) else ""


_GOES_ON = ("{", "[", ",")
"""Last characters of a line that does not end a value."""


def read_jsonl(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read JSON lines: each line is an object; empty lines are skipped."""
    objects = _Objects(columns)
    for text, number, behind in lines(path, row, offset, limits):
        if not text.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = objects.decoder.decode(text)
        except json.JSONDecodeError as error:
            if text.rstrip().endswith(_GOES_ON):
                advice = (_in_one_object(path, limits) if number == 1 else "") or (
                    "Write each row on one line, or all rows as one array, [{…}, {…}], in a '.json' file."
                )
                raise DataError(f"{where} begins a value that goes on in the next line. {advice}") from None
            raise DataError(f"{where} is not valid JSON: {error.msg} (column {error.colno}).") from None
        except (RecursionError, ValueError) as error:
            raise _unreadable(where, error) from None
        yield Row(objects.checked(value, where), where, number, behind)


def read_json(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read a JSON array of objects; a file that starts otherwise is read as JSON lines."""
    array = _Array(path, limits, _Objects(columns))
    if not array.begins:
        yield from read_jsonl(path, columns, row, offset, limits)
        return
    for number, value in enumerate(array.items(), 1):
        where = f"{path}, item {number}"
        values = array.objects.checked(value, where)
        if number > row:
            yield Row(values, where, number, 0)


class _Array:
    """The items of an array, each parsed as soon as it is complete; only one of them is in memory."""

    def __init__(self, path: Path, limits: Limits, objects: _Objects) -> None:
        self.path, self.limits, self.objects = path, limits, objects
        self._pieces = pieces(path, limits)
        self._text, self._at = "", 0
        self._line, self._column = 1, 0
        """Position of the beginning of `_text` in the file."""

    @property
    def begins(self) -> bool:
        """Return whether the file starts as an array."""
        return self._next() == "["

    def _more(self) -> bool:
        """Drop the parsed part and read as much again as remains, so that a long item takes linear time."""
        done, rest = self._text[: self._at], self._text[self._at :]
        ends = done.count("\n")
        self._column = len(done) - done.rfind("\n") - 1 if ends else self._column + len(done)
        self._line += ends
        parts, remaining = [rest], max(1, len(rest))
        for piece in self._pieces:
            parts.append(piece)
            remaining -= len(piece)
            if remaining <= 0:
                break
        self._text, self._at = "".join(parts), 0
        return len(self._text) > len(rest)

    def _next(self) -> str:
        """Return the next character that is not blank, without consuming it; empty at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in BLANK:
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                return ""

    def _wrong(self, what: str, at: int) -> DataError:
        ends = self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at) if ends else self._column + at + 1
        return DataError(f"{self.path} is not valid JSON: {what} (line {self._line + ends}, column {column}).")

    def _value(self, number: int) -> Any:
        while True:
            at = self._at
            try:
                value, self._at = self.objects.decoder.raw_decode(self._text, at)
            except json.JSONDecodeError as error:
                if error.pos < len(self._text) - CUT and "Unterminated" not in error.msg:
                    raise self._wrong(error.msg, error.pos) from None
                self._check_length(number, len(self._text) - at)
                if not self._more():
                    raise self._wrong(error.msg, error.pos - at) from None
            except (RecursionError, ValueError) as error:
                raise _unreadable(f"{self.path}, item {number}", error) from None
            else:
                self._check_length(number, self._at - at)
                return value

    def _check_length(self, number: int, length: int) -> None:
        if length > self.limits.row_bytes:
            raise too_long(f"{self.path}, item {number},", self.limits)

    def items(self) -> Iterator[Any]:
        """Iterate over the items."""
        self._at += 1
        if self._next() == "]":
            self._at += 1
        else:
            for number in range(1, 2**62):
                self._next()
                yield self._value(number)
                if (after := self._next()) not in (",", "]"):
                    raise self._wrong("Expecting ',' delimiter", self._at)
                self._at += 1
                if after == "]":
                    break
        if self._next():
            raise self._wrong("Extra data", self._at)
