"""Rows out of files, one at a time, each with the exact place where the next one starts.

The line formats count bytes themselves, so that reading goes on at a byte offset instead of skipping rows; compressed
files are decompressed up to it.
"""

from __future__ import annotations

import bz2
import contextlib
import csv
import glob
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from everlearn.errors import DataError, EverlearnError, did_you_mean


class Row(NamedTuple):
    """One row of a file: its values, where it is (for errors), and where the next one starts."""

    values: Mapping[str, Any]
    where: str
    next_row: int
    next_offset: int


Reader = Callable[[Path, Sequence[str], int, int], Iterator[Row]]
"""(path, wanted columns, row to start at, its byte offset) → rows. Columns may be more than the wanted ones."""


def _open_zstd(path: Path) -> BinaryIO:
    import pyarrow

    return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(path, compression="zstd")))


COMPRESSIONS: dict[str, Callable[[Path], BinaryIO]] = {
    ".gz": lambda path: cast(BinaryIO, gzip.GzipFile(path, "rb")),
    ".bz2": lambda path: cast(BinaryIO, bz2.BZ2File(path, "rb")),
    ".xz": lambda path: cast(BinaryIO, lzma.LZMAFile(path, "rb")),  # noqa: SIM115 - closed by the `with` of _opened
    ".zst": _open_zstd,
}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open for reading bytes, decompressed; what cannot be read becomes a sentence."""
    compression = path.suffix.lower()
    try:
        with COMPRESSIONS.get(compression, lambda p: p.open("rb"))(path) as file:
            yield file
    except EverlearnError:
        raise
    # Each decompressor raises its own types for a damaged file, down to EOFError and ValueError.
    except Exception as error:
        if isinstance(error, (FileNotFoundError, PermissionError)) or compression not in COMPRESSIONS:
            raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
        raise DataError(f"{path} cannot be decompressed: it is damaged, cut short or no {compression} file.") from error


def _skip(file: BinaryIO, count: int) -> None:
    """Read over `count` bytes; not every decompressor can seek."""
    while count > 0 and (passed := len(file.read(min(count, 2**20)))):
        count -= passed


def _lines(path: Path, row: int, offset: int) -> Iterator[tuple[str, int, int]]:
    """Text of each line, its number (from 1), and the byte offset behind it."""
    with _opened(path) as file:
        if file.seekable() and path.suffix.lower() not in COMPRESSIONS:
            file.seek(offset)
        else:
            _skip(file, offset)
        for number, raw in enumerate(file, row + 1):
            offset += len(raw)
            if b"\0" in raw:
                raise DataError(f"{path} is a binary file, not text: line {number} holds NUL bytes.")
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path} is not UTF-8 text: line {number}, byte {error.start} ({error.reason})."
                ) from None
            yield text, number, offset


def read_txt(path: Path, columns: Sequence[str], row: int, offset: int) -> Iterator[Row]:
    """Each line is a row with the one column ``text``."""
    for text, number, behind in _lines(path, row, offset):
        yield Row({"text": text.rstrip("\r\n")}, f"{path}, line {number}", number, behind)


def read_whole(path: Path, columns: Sequence[str], row: int, offset: int) -> Iterator[Row]:
    """The whole file is one row with the one column ``text``."""
    if row == 0:
        yield Row({"text": "".join(text for text, _, _ in _lines(path, 0, 0))}, str(path), 1, 0)


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if "\n" in text.strip() else ""
        raise DataError(f"{where} is not valid JSON: {error.msg} ({place}column {error.colno}).") from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{where} is not JSON that can be read: {error}.") from None


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where} is not a JSON object with named columns but {type(value).__name__}.")
    return value


def read_jsonl(path: Path, columns: Sequence[str], row: int, offset: int) -> Iterator[Row]:
    """Each line is a JSON object; empty lines are skipped."""
    for text, number, behind in _lines(path, row, offset):
        if text.strip():
            where = f"{path}, line {number}"
            yield Row(_object(_parse(text, where), where), where, number, behind)


def read_json(path: Path, columns: Sequence[str], row: int, offset: int) -> Iterator[Row]:
    """A JSON array of objects; a file that starts otherwise is read as JSON lines."""
    first = next((text.lstrip() for text, _, _ in _lines(path, 0, 0) if text.strip()), "")
    if not first.startswith("["):
        yield from read_jsonl(path, columns, row, offset)
        return
    values = _parse("".join(text for text, _, _ in _lines(path, 0, 0)), str(path))
    for number, value in enumerate(values[row:], row + 1):
        where = f"{path}, item {number}"
        yield Row(_object(value, where), where, number, 0)


def _read_separated(path: Path, row: int, offset: int, delimiter: str) -> Iterator[Row]:
    behind, line = 0, 0

    def texts(start_row: int, start: int) -> Iterator[str]:
        # csv.reader asks for lines one record at a time, so `behind` is the record's end when it comes out.
        nonlocal behind, line
        for text, number, after in _lines(path, start_row, start):
            behind, line = after, number
            yield text

    # Python's default limit of 128 KB per cell is shorter than many documents.
    csv.field_size_limit(2**31 - 1)
    try:
        names = next(csv.reader(texts(0, 0), delimiter=delimiter), None)
        if names is None:
            return
        if offset == 0:
            row, offset = line, behind
        for cells in csv.reader(texts(row, offset), delimiter=delimiter):
            if not cells:
                continue
            where = f"{path}, line {line}"
            if len(cells) != len(names):
                raise DataError(f"{where} has {len(cells)} cells; the header names {len(names)} columns.")
            yield Row(dict(zip(names, cells, strict=True)), where, line, behind)
    except csv.Error as error:
        raise DataError(f"{path}, line {line + 1} cannot be read as a table: {error}.") from None


def read_csv(path: Path, columns: Sequence[str], row: int, offset: int) -> Iterator[Row]:
    """Comma-separated with a header line; quoted cells may hold line ends."""
    yield from _read_separated(path, row, offset, ",")


def read_tsv(path: Path, columns: Sequence[str], row: int, offset: int) -> Iterator[Row]:
    """Tab-separated with a header line."""
    yield from _read_separated(path, row, offset, "\t")


def read_parquet(path: Path, columns: Sequence[str], row: int, offset: int) -> Iterator[Row]:
    """Parquet, only the columns that are wanted; row groups before `row` are not read."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            wanted = [name for name in names if name in columns]
            if len(wanted) < len(set(columns)):
                # The caller words the error; it needs to see which columns there are.
                yield Row(dict.fromkeys(names), str(path), 1, 0)
                return
            start = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if start + rows > row:
                    values = file.read_row_group(group, columns=wanted).to_pylist()
                    for number in range(max(row, start), start + rows):
                        yield Row(values[number - start], f"{path}, row {number + 1}", number + 1, 0)
                start += rows
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


FORMATS: dict[str, Reader] = {
    ".txt": read_txt,
    ".text": read_txt,
    ".md": read_txt,
    ".rst": read_txt,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
}


def format_of(path: Path) -> str | None:
    """The format's suffix without the compression's, or None when it is not known."""
    name = Path(path.stem) if path.suffix.lower() in COMPRESSIONS else path
    suffix = name.suffix.lower()
    return suffix if suffix in FORMATS else None


def resolve_files(path: str, key: str = "path") -> list[Path]:
    """Every file that a path, folder or glob stands for, in a stable order.

    Raises:
        DataError: there is none, or a format is not known; the sentence names the nearest file.
    """
    given = Path(path).expanduser()
    if given.is_dir():
        inside = (p for p in given.rglob("*") if p.is_file() and format_of(p))
        files = sorted(p for p in inside if not any(part.startswith(".") for part in p.relative_to(given).parts))
        if not files:
            raise DataError(f"`{key}: {path}` is a folder without any file of a known format ({', '.join(FORMATS)}).")
        return files
    if given.is_file():
        files = [given]
    elif glob.has_magic(path):
        files = sorted(p for p in map(Path, glob.glob(str(given), recursive=True)) if p.is_file())
        if not files:
            raise DataError(f"`{key}: {path}` matches no file.")
    else:
        raise DataError(f"`{key}: {path}`: there is no such file or folder.{files_beside(given)}")
    for file in files:
        if format_of(file) is None:
            known, packed = ", ".join(FORMATS), ", ".join(COMPRESSIONS)
            raise DataError(f"The format of {file} is not known; name it {known}, compressed or not ({packed}).")
        if format_of(file) == ".parquet" and file.suffix.lower() != ".parquet":
            raise DataError(f"{file}: Parquet is compressed inside; unpack the outer {file.suffix}.")
    return files


def files_beside(path: Path) -> str:
    """A hint which file of the same folder was meant; all of them only when they are few."""
    parent = path.parent
    if not parent.is_dir():
        return f" The folder {parent} does not exist either."
    names = [p.name for p in parent.iterdir() if not p.name.startswith(".")]
    hint = did_you_mean(path.name, names)
    return hint if len(names) <= 12 or "Did you mean" in hint else ""


def read_rows(path: Path, columns: Sequence[str], row: int = 0, offset: int = 0, whole: bool = False) -> Iterator[Row]:
    """Rows of one file from a position on, each checked to have the wanted columns.

    Args:
        path: of a known format (:func:`resolve_files`).
        columns: that every row must have.
        row: to start at (0 is the first), as a :class:`Row` before it said in ``next_row``.
        offset: its byte offset, as ``next_offset`` said.
        whole: a text file is one row, not one a line.

    Raises:
        DataError: the file cannot be read, or a column is missing; the sentence lists those there are.
    """
    suffix = format_of(path) or ""
    reader = read_whole if whole and FORMATS[suffix] is read_txt else FORMATS[suffix]
    for found in reader(path, columns, row, offset):
        for column in columns:
            if column not in found.values:
                there = ", ".join(f"'{name}'" for name in found.values) or "none"
                hint = did_you_mean(column, found.values) if len(found.values) > 1 else ""
                nearest = hint if "Did you mean" in hint else ""
                raise DataError(f"{found.where} has no column '{column}'; its columns are {there}.{nearest}")
        yield found
