"""Read archives of a repository at a commit in place: nothing is extracted, so no path in them is ever used."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from everlearn.errors import DataError

MOST_FILE, MOST = 2**28, 2**34
"""Bytes of a file that is read, and of all that an archive unpacks to: more is no text that anybody published."""
MOST_LINE = 2**26
"""Bytes of a line that is read."""
_MOST_HEADER = 2**16
"""Bytes of all that describes one file of an archive: its header, long names, extended headers, holes."""
_PIECE = 2**20
BROKEN = (OSError, EOFError, ValueError, OverflowError, tarfile.TarError, zlib.error)
"""What a damaged archive may end in; `tarfile` lets some of Python's own errors pass."""


def broken(archive: Path) -> str:
    """Read an archive to its end and describe its damage; empty if there is none."""
    left = MOST
    try:
        with gzip.open(archive) as file:
            while piece := file.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    return f"it unpacks to more than {MOST:,} bytes"
    except BROKEN as error:
        return f"it is no whole archive ({error})"
    return ""


class _Unpacked(gzip.GzipFile):
    """The bytes of a compressed archive, of which `tarfile` takes few at once for a header, however much one announces.

    Attributes:
        left: bytes that may be read; None for as many as there are.
    """

    left: int | None = _MOST_HEADER

    def read(self, size: int | None = -1) -> bytes:
        """Read, unless it is more than what is left."""
        if self.left is not None:
            if size is None or not 0 <= size <= self.left:
                raise tarfile.ReadError(f"the description of a file has more than {_MOST_HEADER:,} bytes")
            self.left -= size
        return super().read(size)


def contents(archive: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Yield each file of a ``.tar.gz`` in its order, to be read before the next one; links and folders too.

    Raises:
        OSError, EOFError, ValueError, OverflowError, tarfile.TarError, zlib.error: the archive is broken, describes a
            file at too great length, or holds a sparse file.
    """
    with _Unpacked(archive) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        while True:
            file.left = _MOST_HEADER
            member = tar.next()
            file.left = None
            if member is None:
                return
            if member.size < 0:
                raise tarfile.ReadError(f"'{member.name}' has {member.size} bytes")
            if member.issparse():  # its holes may be of any size, and would be read as zeros
                raise tarfile.ReadError(f"'{member.name}' is stored with holes: pack it without `--sparse`")
            yield tar, member
            tar.members.clear()  # type: ignore[attr-defined]  # there may be any number of them


def lines(file: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the lines of a text in UTF-8 without their ends, those that are not blank.

    Args:
        file: the text; it is closed.
        path: its location, for errors.

    Raises:
        DataError: it is no UTF-8, or a line is too long.
    """
    with file:
        for number, raw in enumerate(iter(partial(file.readline, MOST_LINE + 1), b""), 1):
            if len(raw) > MOST_LINE:
                raise DataError(
                    f"'{path}', line {number}, is longer than {MOST_LINE:,} bytes: put each document on a line."
                )
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"'{path}' is no text in UTF-8: {error.reason}.") from None
            if line.strip():
                yield line.rstrip("\r\n")


def members(archive: Path, selects: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield selected files of an archive, in its order: path inside the repository, and content.

    Args:
        archive: a ``.tar.gz`` with everything in one folder, as GitHub creates it.
        selects: returns whether to read the file at a path. Links are never followed.

    Raises:
        DataError: the archive is broken, or unpacks to more than the limit.
    """
    left = MOST
    try:
        for tar, member in contents(archive):
            name = member.name.partition("/")[2]
            chosen = member.isreg() and selects(name)
            left -= member.size
            if left < 0 or (chosen and member.size > MOST_FILE):
                raise DataError(f"{archive} unpacks to more than is read: '{name}' has {member.size:,} bytes.")
            if chosen and (file := tar.extractfile(member)):
                yield name, file.read()
    except BROKEN as error:
        raise DataError(f"{archive} cannot be read: {error}.") from None
