"""Read rows from files, one at a time, each with the exact position of the next one.

Readers of line formats count bytes, so that reading resumes at a byte offset instead of skipping rows; compressed
files are decompressed up to it.
"""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from everlearn import wording
from everlearn.data.arrow_rows import read_arrow, read_parquet
from everlearn.data.folders import SPLITS, inside
from everlearn.data.json_rows import read_json, read_jsonl, rows_inside
from everlearn.data.remote import fetched, is_remote
from everlearn.data.row_formats import format_with
from everlearn.data.rows import Reader, Row, refuse_repeated
from everlearn.data.text_files import COMPRESSIONS, PACKED_INSIDE, Limits, lines, too_long
from everlearn.data.whole_files import CODE, WHOLE, read_whole
from everlearn.errors import DataError, did_you_mean

SEPARATORS = ";\t|"
"""What may separate the cells of a table instead of its usual separator, if that is not in the header."""
ARCHIVES = {".zip": "zip", ".tar": "tar"}
"""Suffix of an archive → protocol that reads a file in it."""
GIVE_UP = 1000
"""A column that none of this number of rows has counts as missing."""


def read_txt(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read lines: each is a row with the one column ``text``; empty lines are skipped."""
    for text, number, behind in lines(path, row, offset, limits):
        if text.strip():
            yield Row({"text": text.rstrip("\r\n")}, f"{path}, line {number}", number, behind)


def _read_separated(
    path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits, delimiter: str
) -> Iterator[Row]:
    behind, line, began = 0, 0, 0

    def texts(start_row: int, start: int) -> Iterator[str]:
        # csv.reader asks for lines one record at a time, so `behind` is the record's end when it comes out.
        nonlocal behind, line, began
        began = start
        for text, number, after in lines(path, start_row, start, limits):
            behind, line = after, number
            if behind - began > limits.row_bytes:
                raise too_long(f"{path}: the record that ends in line {line}", limits, "; a quote may be left open")
            yield text

    # Python's default limit of 128 KB per cell is shorter than many documents.
    csv.field_size_limit(2**31 - 1)
    try:
        names = next(csv.reader(texts(0, 0), delimiter=delimiter), None)
        if names is None:
            return
        if len(names) == 1 and (other := next((each for each in SEPARATORS if each in names[0]), None)):
            yield from _read_separated(path, columns, row, offset, limits, other)
            return
        refuse_repeated(path, names, columns)
        if any(column not in names for column in columns):
            yield Row(dict.fromkeys(names), f"{path}, line {line}", line, behind)
            return
        if offset == 0:
            row, offset = line, behind
        for cells in csv.reader(texts(row, offset), delimiter=delimiter):
            began = behind
            if not cells:
                continue
            where = f"{path}, line {line}"
            if len(cells) != len(names):
                raise DataError(
                    f"{where} has {wording.count(len(cells), 'cell')}; the header names "
                    f"{wording.count(len(names), 'column')}."
                )
            yield Row(dict(zip(names, cells, strict=True)), where, line, behind)
    except csv.Error as error:
        raise DataError(f"{path}, line {line + 1} cannot be read as a table: {error}.") from None


FORMATS: dict[str, Reader] = {
    ".txt": read_txt,
    ".text": read_txt,
    ".md": read_txt,
    ".rst": read_txt,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": partial(_read_separated, delimiter=","),
    ".tsv": partial(_read_separated, delimiter="\t"),
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".feather": read_arrow,
    **WHOLE,
}
"""Suffix of a format → its reader."""
NAMED = ", ".join(suffix for suffix in FORMATS if suffix not in CODE)
"""The formats, for errors; source code has many suffixes."""


def format_of(path: Path) -> str | None:
    """Return the format's suffix without the compression's; None when it is not known."""
    name = Path(path.stem) if path.suffix.lower() in COMPRESSIONS else path
    suffix = name.suffix.lower()
    return suffix if suffix in FORMATS else None


def folder_of(path: str, key: str = "path") -> Path | None:
    """Return the local folder that a path or a URL stands for; None for files.

    Args:
        path: as written by the user; a URL is downloaded first (:mod:`everlearn.data.remote`).
        key: the recipe's key, for errors.
    """
    place = fetched(path, key, format_of) if is_remote(path) else Path(path).expanduser()
    return place if isinstance(place, Path) and place.is_dir() else None


def is_plain_text(path: Path) -> bool:
    """Return whether a line of the file is a document."""
    return FORMATS.get(format_of(path) or "") is read_txt


def resolve_files(path: str, key: str = "path", split: str | None = None) -> list[Path]:
    """Return every file that a path, folder or glob stands for, in a stable order.

    Args:
        path: as written by the user; a URL is downloaded first (:mod:`everlearn.data.remote`).
        key: the recipe's key, for errors; `train`, `validation` and `test` are also the split of a folder.
        split: the split to read of a folder whose file names indicate splits. Default: that of the key, or `train`.

    Raises:
        DataError: there is none, or a format is not known; the sentence names the nearest file.
    """
    if is_remote(path):
        local = fetched(path, key, format_of)
        if isinstance(local, tuple):
            return [file for each in local for file in resolve_files(str(each), key)]
        return resolve_files(str(local), key, split)
    location = Path(path).expanduser()
    if location.is_dir():
        files = inside(location, format_of, split or SPLITS.get(key, "train")).read
        if not files:
            raise DataError(f"`{key}: {path}` is a folder without any file of a known format ({NAMED}, source code).")
        for file in files:
            _check_unpacked(file)
        return files
    if location.is_file():
        files = [location]
    elif glob.has_magic(path):
        files = sorted(p for p in map(Path, glob.glob(str(location), recursive=True)) if p.is_file())
        if not files:
            raise DataError(f"`{key}: {path}` matches no file.")
    else:
        raise DataError(f"`{key}: {path}`: there is no such file or folder.{files_beside(location)}")
    for file in files:
        if format_of(file) is None:
            raise _unknown(file)
        _check_unpacked(file)
    return files


def _unknown(file: Path) -> DataError:
    """Return the error for a file of another format."""
    protocol = next((ARCHIVES[suffix] for suffix in file.suffixes if suffix in ARCHIVES), None)
    instead = "Convert it, or rename it if it is in one of these."
    if protocol is not None:
        instead = f"To read a file inside of it, write `{protocol}://rows.jsonl::{file}`."
    return DataError(
        f"The format of {file} is not known. Known are {NAMED}, compressed or not ({', '.join(COMPRESSIONS)}), and the "
        f"suffixes of programming languages. {instead}"
    )


def _check_unpacked(file: Path) -> None:
    """Refuse a compressed file of a format whose reader needs random access."""
    packed_inside = PACKED_INSIDE.get(format_of(file) or "")
    if packed_inside and file.suffix.lower() not in PACKED_INSIDE:
        raise DataError(f"{file}: {packed_inside} is compressed inside; unpack the outer {file.suffix}.")


def files_beside(path: Path) -> str:
    """Suggest a file of the same folder that may be meant; list all of them only when they are few."""
    parent = path.parent
    if not parent.is_dir():
        start = "" if parent.is_absolute() else "; relative paths start where the command runs, not where the recipe is"
        return f" The folder {parent} does not exist either{start}."
    names = [p.name for p in parent.iterdir() if not p.name.startswith(".")]
    hint = did_you_mean(path.name, names)
    return hint if len(names) <= 12 or "Did you mean" in hint else ""


def read_rows(
    path: Path,
    columns: Sequence[str],
    row: int = 0,
    offset: int = 0,
    one_row: bool = False,
    *,
    optional: Sequence[str] = (),
    limits: Limits | None = None,
    gaps: bool = False,
) -> Iterator[Row]:
    """Yield the rows of one file from a position on, each with the wanted columns.

    Args:
        path: a file of a known format (:func:`resolve_files`).
        columns: columns that every row must have.
        row: index of the first row to read, the ``next_row`` of a previous :class:`Row`.
        offset: byte offset of that row, the ``next_offset`` of a previous :class:`Row`.
        one_row: a text file is one row, not one a line.
        optional: columns that are read as well if the file has them.
        limits: maximum size of a row and of a decompressed file.
        gaps: a row may lack a column, which is None there; a file may not.

    Raises:
        DataError: the file cannot be read, or a column is missing; the sentence lists those there are.
    """
    suffix = format_of(path) or ""
    reader = read_whole if one_row and FORMATS[suffix] is read_txt else FORMATS[suffix]
    unseen = set(columns) if row == 0 else set()
    first = None
    stored = stored_columns(path) if optional else ()
    all_columns = (*columns, *(column for column in optional if column in stored))
    for count, record in enumerate(reader(path, all_columns, row, offset, limits or Limits()), 1):
        missing = [column for column in columns if column not in record.values]
        if missing and (not gaps or FORMATS[suffix] not in (read_jsonl, read_json)):
            raise _no_column(record, missing[0], path)
        if unseen:
            first = first or record
            unseen.difference_update(record.values)
            if unseen and count >= GIVE_UP:
                break
        yield record._replace(values={**record.values, **dict.fromkeys(missing)}) if missing else record
    if unseen and first is not None:
        raise _no_column(first, next(column for column in columns if column in unseen), path)


def stored_columns(path: Path) -> tuple[str, ...]:
    """Return the columns of a file whose reader returns only those that are asked for; none for other formats."""
    reader = FORMATS[format_of(path) or ""]
    if reader not in (read_parquet, read_arrow):
        return ()
    missing = ("",)  # a table that lacks a column gives one row that names those there are
    return tuple(row.values if (row := next(reader(path, missing, 0, 0, Limits()), None)) is not None else ())


def _no_column(row: Row, column: str, path: Path) -> DataError:
    names = [name if len(name) <= 40 else f"{name[:40]}…" for name in row.values]  # without a header, a row of text
    there = ", ".join(f"'{name}'" for name in names[:20]) + (" …" if len(names) > 20 else "") or "none"
    advice = _advice(row, column, path) or (near_column(column, row.values) if len(row.values) > 1 else "")
    return DataError(f"{row.where} has no column '{column}'; its columns are {there}.{advice}")


def near_column(column: str, there: Iterable[str]) -> str:
    """Return the column that a missing one may be meant for, or the key that names the column of the text."""
    if "Did you mean" in (hint := did_you_mean(column, there)):
        return hint
    return " Name the one with the text in `text_column`." if column == "text" else ""


def _advice(row: Row, column: str, path: Path) -> str:
    """Return how the rows are read, if their columns tell: values inside of a column, a kind with a name, or a list."""
    if column.split(".")[0] in row.values:
        return f" To read a value inside a column, name it in braces: `{{{column}}}`."
    form = format_with(row.values)
    if form is None:
        inside_it = rows_inside(row.values, path) if row.next_row == 1 else ""
        return f" {inside_it}" if inside_it else ""
    return f" Such rows are read by `row_format: {form.name}`.{f' {form.note}' if form.note else ''}"
