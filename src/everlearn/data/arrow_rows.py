"""Rows out of Arrow files (those of ``Dataset.save_to_disk``, and Feather) and of Parquet files.

No more of a file is in memory at once than the limits allow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everlearn.data.rows import Row, refuse_repeated
from everlearn.data.text_files import Limits, allowed_bytes, too_expanded, too_long
from everlearn.errors import DataError, EverlearnError, first_line


def read_arrow(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read the wanted columns of an Arrow file, in stream or file format; rows before `row` are skipped.

    The file is memory-mapped, so no more than a batch is in memory.
    """
    with _readable(path, "Arrow"):
        number, size, allowed = 0, 0, allowed_bytes(path, limits)
        for batch in _batches(path):
            size += batch.nbytes
            if size > allowed:
                raise too_expanded(path, limits)
            names = batch.schema.names
            selected = _selected(path, names, columns)
            if selected is None:
                yield Row(dict.fromkeys(names), str(path), 1, 0)
                return
            chosen = batch.select(selected)
            for place in range(max(0, row - number), len(batch)):
                values = {name: chosen.column(at)[place].as_py() for at, name in enumerate(selected)}
                if sum(len(value) for value in values.values() if isinstance(value, str)) > limits.row_bytes:
                    raise too_long(f"{path}, row {number + place + 1},", limits)
                yield Row(values, f"{path}, row {number + place + 1}", number + place + 1, 0)
            number += len(batch)


def stored_rows(path: Path) -> int | None:
    """Return the number of rows of an Arrow or Parquet file, without reading its columns; None for other formats."""
    from pyarrow import parquet

    if path.suffix.lower() == ".parquet":
        with _readable(path, "Parquet"):
            return int(parquet.read_metadata(path).num_rows)
    if path.suffix.lower() in (".arrow", ".feather"):
        with _readable(path, "Arrow"):
            return sum(len(batch) for batch in _batches(path))
    return None


@contextlib.contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    """Refuse a damaged file with a sentence: Arrow raises its own errors, and Python's, for whatever is wrong."""
    try:
        yield
    except EverlearnError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read as {kind}: {first_line(error).rstrip('.')}.") from error


def _selected(path: Path, names: Sequence[str], columns: Sequence[str]) -> list[str] | None:
    """Return the names in `columns`, in the order of the file; None if one is missing."""
    refuse_repeated(path, names, columns)
    selected = [name for name in names if name in columns]
    return selected if len(selected) == len(set(columns)) else None


def _batches(path: Path) -> Iterator[Any]:
    """Yield the record batches of a file in either format."""
    import pyarrow

    with pyarrow.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            with pyarrow.ipc.open_file(source) as file:
                yield from (file.get_batch(number) for number in range(file.num_record_batches))
            return
        source.seek(0)
        with pyarrow.ipc.open_stream(source) as stream:
            yield from stream


BATCH = 256
"""Number of rows that are decoded at once."""


def read_parquet(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read the wanted columns of a Parquet file; row groups before `row` are not read."""
    from pyarrow import parquet

    with _readable(path, "Parquet"), parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        selected = _selected(path, names, columns)
        if selected is None:
            yield Row(dict.fromkeys(names), str(path), 1, 0)
            return
        _refuse_expanded(path, file.metadata, selected, limits)
        start, size = 0, 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if start + rows > row:
                number, at_once = start, _rows_at_once(path, file, group, selected, limits)
                for batch in file.iter_batches(at_once, row_groups=[group], columns=selected):
                    if number + len(batch) > row:
                        sizes = _sizes(batch, limits)
                        size += int(sizes.sum())
                        if size > allowed_bytes(path, limits):
                            raise too_expanded(path, limits)
                        yield from _rows_of(path, batch, sizes, number, row, limits)
                    number += len(batch)
            start += rows


def _refuse_expanded(path: Path, metadata: Any, selected: Sequence[str], limits: Limits) -> None:
    """Refuse a file whose wanted columns are compressed too well, before any of it is decompressed.

    Columns are looked at only if all together are too large: of a damaged column pyarrow's metadata end the process.
    """
    groups, allowed = range(metadata.num_row_groups), allowed_bytes(path, limits)
    all_columns = sum(metadata.row_group(group).total_byte_size for group in groups)
    if all_columns > allowed and sum(_unpacked(metadata, group, selected) for group in groups) > allowed:
        raise too_expanded(path, limits)


def _unpacked(metadata: Any, group: int, selected: Sequence[str]) -> int:
    """Return the bytes of the wanted columns of a row group, decompressed but not decoded."""
    prefixes = tuple(f"{name}." for name in selected)  # a list of texts is "<name>.list.element"
    chunks = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if f"{chunk.path_in_schema}.".startswith(prefixes))


def _rows_at_once(path: Path, file: Any, group: int, selected: Sequence[str], limits: Limits) -> int:
    """Return how many rows of a group can be decoded together, even if each has the longest text of the group.

    With dictionary encoding a long text is stored once and may occur in every row. Texts in lists are not considered:
    Arrow decodes at most 2 GiB of them at once.
    """
    from pyarrow import compute, parquet, types

    kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    texts = [name for name in selected if any(kind(file.schema_arrow.field(name).type) for kind in kinds)]
    if not texts or file.metadata.row_group(group).total_byte_size <= limits.row_bytes // BATCH:
        return BATCH
    with parquet.ParquetFile(path, metadata=file.metadata, read_dictionary=texts) as encoded:
        first = next(encoded.iter_batches(1, row_groups=[group], columns=texts), None)
    columns = [] if first is None else first.columns
    longest = sum(compute.max(compute.binary_length(column.dictionary)).as_py() or 0 for column in columns)
    return int(min(BATCH, max(1, limits.row_bytes // max(1, longest))))


def _rows_of(path: Path, batch: Any, sizes: np.ndarray, start: int, first: int, limits: Limits) -> Iterator[Row]:
    """Yield the rows of a batch that begins with row `start`, from row `first` on."""
    at = max(first - start, 0)
    while at < len(batch):
        if sizes[at] > limits.row_bytes:
            raise too_long(f"{path}, row {start + at + 1},", limits)
        # Convert as many rows at once as fit into the limit for a single row.
        end = at + int(np.searchsorted(np.cumsum(sizes[at:]), limits.row_bytes, side="right"))
        try:
            values = batch.slice(at, end - at).to_pylist()
        except UnicodeDecodeError as error:
            between = f"rows {start + at + 1} to {start + end}"
            raise DataError(f"{path} holds text that is not UTF-8, in one of the {between} ({error.reason}).") from None
        for number, value in enumerate(values, start + at + 1):
            yield Row(value, f"{path}, row {number}", number, 0)
        at = end


def _sizes(batch: Any, limits: Limits) -> np.ndarray:
    """Return the bytes of each row, int64 [rows]; a short column of lists or mappings counts by its mean."""
    return sum((_column_sizes(column, limits) for column in batch.columns), np.zeros(len(batch), np.int64))


def _column_sizes(column: Any, limits: Limits) -> np.ndarray:
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        lengths, rows = _column_sizes(column.dictionary, limits), np.asarray(column.indices.fill_null(0))
        return np.where(column.is_valid(), lengths[rows] if len(lengths) else 0, 0)
    if types.is_primitive(column.type) or types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    try:
        return np.asarray(compute.binary_length(column).fill_null(0), np.int64)
    except NotImplementedError:  # lists and mappings
        if column.nbytes <= limits.row_bytes:
            return np.full(len(column), -(-column.nbytes // max(1, len(column))), np.int64)
        return np.array([column.slice(number, 1).nbytes for number in range(len(column))], np.int64)
