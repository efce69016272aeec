"""Read files, compressed or not, as lines or pieces of text, within limits on memory and decompressed size."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from everlearn.errors import DataError, EverlearnError


class Limits(NamedTuple):
    """Limits on the files that are read; a recipe sets them under `data`."""

    row_bytes: int = 256 * 2**20
    """Bytes of one row: a line, a record of a table, an item of a JSON array, a whole file that is one document."""
    expansion: float = 200.0
    """Largest ratio by which a compressed file may expand; up to `row_bytes` any ratio is allowed."""


def _open_zstd(path: Path) -> BinaryIO:
    import pyarrow

    return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(path, compression="zstd")))


_DECLARED = re.compile(rb"(?:charset|coding)\s*[=:]\s*[\"']?([\w.-]+)", re.I)
DECLARED_WITHIN = 1024
"""Bytes at the beginning of a document in which it may declare its encoding."""
COMPRESSIONS: dict[str, Callable[[Path], BinaryIO]] = {
    ".gz": lambda path: cast(BinaryIO, gzip.GzipFile(path, "rb")),
    ".bz2": lambda path: cast(BinaryIO, bz2.BZ2File(path, "rb")),
    ".xz": lambda path: cast(BinaryIO, lzma.LZMAFile(path, "rb")),  # noqa: SIM115 - closed by the `with` of _opened
    ".zst": _open_zstd,
}

PACKED_INSIDE = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Feather", ".pdf": "PDF"}
"""Formats that compress inside of a file, by their suffixes."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading its decompressed bytes; turn errors into a :class:`DataError`."""
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


def allowed_bytes(path: Path, limits: Limits) -> float:
    """Return the number of bytes that may come out of a file."""
    if path.suffix.lower() not in (*COMPRESSIONS, *PACKED_INSIDE):
        return float("inf")
    return max(limits.row_bytes, limits.expansion * path.stat().st_size)


def too_expanded(path: Path, limits: Limits) -> DataError:
    """Return the error for a file that unpacks to more than is allowed."""
    return DataError(
        f"{path} unpacks to more than {limits.expansion:g} times its size. If that is meant, raise "
        "`data.max_expansion`."
    )


def too_long(where: str, limits: Limits, hint: str = "") -> DataError:
    """Return the error for a row that is longer than is allowed."""
    return DataError(
        f"{where} is longer than {limits.row_bytes:,} bytes{hint}. If that is meant, raise `data.max_row_bytes`."
    )


def _binary(path: Path, raw: bytes, line: int) -> DataError:
    if line == 1 and raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return DataError(f"{path} is UTF-16 text; save it as UTF-8.")
    return DataError(f"{path} is a binary file, not text: line {line} holds NUL bytes.")


def _no_text(path: Path, line: int, byte: int, error: UnicodeDecodeError) -> DataError:
    return DataError(f"{path} is not UTF-8 text: line {line}, byte {byte} ({error.reason}). Save it as UTF-8.")


def lines(path: Path, row: int, offset: int, limits: Limits) -> Iterator[tuple[str, int, int]]:
    """Yield the text of each line from a byte offset on, its number (from 1), and the byte offset behind it.

    Raises:
        DataError: the file cannot be read or decompressed, is no UTF-8 text, or passes a limit.
    """
    with _opened(path) as file:
        allowed = allowed_bytes(path, limits)
        if file.seekable() and path.suffix.lower() not in COMPRESSIONS:
            file.seek(offset)
        else:
            _skip(file, offset)
        for number, raw in enumerate(iter(partial(file.readline, limits.row_bytes + 1), b""), row + 1):
            offset += len(raw)
            if len(raw) > limits.row_bytes:
                raise too_long(f"{path}, line {number},", limits)
            if offset > allowed:
                raise too_expanded(path, limits)
            if b"\0" in raw:
                raise _binary(path, raw, number)
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _no_text(path, number, error.start, error) from None
            yield text, number, offset


def text_of(path: Path, limits: Limits) -> str:
    """Return the text of a file that is one document, in UTF-8 or else in the encoding that its beginning declares.

    Web pages declare one by ``charset=…``, source code by ``coding: …`` (PEP 263).

    Raises:
        DataError: as in :func:`lines`.
    """
    with _opened(path) as file:
        raw = file.read(limits.row_bytes + 1)
    if len(raw) > limits.row_bytes:
        raise too_long(f"{path}, which is one document,", limits)
    if (at := raw.find(b"\0")) >= 0:
        raise _binary(path, raw, raw.count(b"\n", 0, at) + 1)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if declared := _DECLARED.search(raw, 0, DECLARED_WITHIN):
            with contextlib.suppress(UnicodeDecodeError, LookupError):
                return raw.decode(declared[1].decode())
        begin = raw.rfind(b"\n", 0, error.start) + 1
        raise _no_text(path, raw.count(b"\n", 0, begin) + 1, error.start - begin, error) from None


def pieces(path: Path, limits: Limits) -> Iterator[str]:
    """Yield the text of a file in pieces of about 1 MiB, regardless of line ends.

    Raises:
        DataError: as in :func:`lines`.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line, column, read = 1, 0, 0
    with _opened(path) as file:
        allowed = allowed_bytes(path, limits)
        while True:
            waiting, raw = decoder.getstate()[0], file.read(2**20)
            read += len(raw)
            if read > allowed:
                raise too_expanded(path, limits)
            if b"\0" in raw:
                raise _binary(path, raw, line + raw.count(b"\n", 0, raw.index(b"\0")))
            known = waiting + raw
            try:
                text = decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                ends = known.count(b"\n", 0, error.start)
                begins = known.rfind(b"\n", 0, error.start) + 1 if ends else -column
                raise _no_text(path, line + ends, error.start - begins, error) from None
            if not raw:
                return
            done = known[: len(known) - len(decoder.getstate()[0])]
            line += done.count(b"\n")
            column = len(done) - done.rfind(b"\n") - 1 if b"\n" in done else column + len(done)
            yield text
