"""Read archives of a repository at a commit in place: nothing is extracted, so no path in them is ever used."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from everlearn.errors import DataError

MOST_FILE, MOST = 2**28, 2**34
"""Bytes of a file that is read, and of all that an archive unpacks to: more is no text that anybody published."""
_PIECE = 2**20
_BROKEN = (OSError, EOFError, tarfile.TarError, zlib.error)


def broken(archive: Path) -> str:
    """Describe what is wrong with the compression of an archive, read to its end; empty if nothing is."""
    left = MOST
    try:
        with gzip.open(archive) as file:
            while piece := file.read(_PIECE):
                left -= len(piece)
                if left < 0:
                    return f"it unpacks to more than {MOST:,} bytes"
    except _BROKEN as error:
        return f"it is no whole archive ({error})"
    return ""


def members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield selected files of an archive, in its order: path inside the repository, and content.

    Args:
        archive: a ``.tar.gz`` with everything in one folder, as GitHub creates it.
        wanted: returns whether to read the file at a path. Links are never followed.

    Raises:
        DataError: the archive is broken, or unpacks to more than the limit.
    """
    left = MOST
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = member.name.partition("/")[2]
                chosen = member.isreg() and wanted(name)
                left -= member.size
                if left < 0 or (chosen and member.size > MOST_FILE):
                    raise DataError(f"{archive} unpacks to more than is read: '{name}' has {member.size:,} bytes.")
                if chosen and (file := tar.extractfile(member)):
                    yield name, file.read()
    except _BROKEN as error:
        raise DataError(f"{archive} cannot be read: {error}.") from None
