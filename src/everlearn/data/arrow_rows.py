"""Rows out of Arrow files: those of ``Dataset.save_to_disk``, and Feather."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everlearn.data.opening import Limits, allowed_bytes, too_expanded, too_long
from everlearn.data.rows import Row, refuse_repeated
from everlearn.errors import DataError, EverlearnError, first_line


def read_arrow(path: Path, columns: Sequence[str], row: int, offset: int, limits: Limits) -> Iterator[Row]:
    """Read the wanted columns of an Arrow file, in the format of streams or of files; batches before `row` are passed.

    The file is mapped, so no more than a batch is in memory.
    """
    try:
        number, size, allowed = 0, 0, allowed_bytes(path, limits)
        for batch in _batches(path):
            size += batch.nbytes
            if size > allowed:
                raise too_expanded(path, limits)
            names = batch.schema.names
            refuse_repeated(path, names, columns)
            wanted = [name for name in names if name in columns]
            if len(wanted) < len(set(columns)):
                yield Row(dict.fromkeys(names), str(path), 1, 0)
                return
            chosen = batch.select(wanted)
            for place in range(max(0, row - number), len(batch)):
                values = {name: chosen.column(at)[place].as_py() for at, name in enumerate(wanted)}
                if sum(len(value) for value in values.values() if isinstance(value, str)) > limits.row_bytes:
                    raise too_long(f"{path}, row {number + place + 1},", limits)
                yield Row(values, f"{path}, row {number + place + 1}", number + place + 1, 0)
            number += len(batch)
    except EverlearnError:
        raise
    # Arrow raises its own errors, and Python's, for whatever is damaged.
    except Exception as error:
        raise DataError(f"{path} cannot be read as Arrow: {first_line(error).rstrip('.')}.") from error


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
