"""Data that suites build: sealed folders in the user's cache, and JSON-lines files."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everlearn.config.addresses import tell
from everlearn.errors import DataError
from everlearn.files import damage, digest, new_folder, user_cache, write_text

FETCHED = "fetched"
"""Folder in a suite's cache with what was fetched for it."""


def cache_folder(suite: str) -> Path:
    """Return the cache folder of a suite, in $EVERLEARN_CACHE or in ``everlearn`` of the user's cache folder."""
    if own := os.environ.get("EVERLEARN_CACHE"):
        return Path(own) / suite
    return user_cache() / suite


def data_folder(cache: str, variable: str, how: str, path: Path | str | None = None) -> Path:
    """Return the data folder of a suite: the given one, that of the environment variable, or the fetched data.

    Args:
        cache: name of the folder in the cache.
        variable: name of the environment variable.
        how: a sentence on what is needed and how to name it, for the error message.
        path: the folder, or None.

    Raises:
        DataError: no folder is named and nothing was fetched, or the folder does not exist.
    """
    named = path if path is not None else os.environ.get(variable)
    fetched = cache_folder(cache) / FETCHED
    if not named and fetched.is_dir():
        return fetched.resolve()
    if not named:
        raise DataError(f"`{cache}` brings no data along. {how}")
    folder = Path(named).expanduser()
    if not folder.is_dir():
        key = "`data`" if path is not None else variable
        raise DataError(f"{key} is '{folder}', and there is no such folder. {how}")
    return folder.resolve()


def read_text(path: Path) -> str:
    """Read a whole file, decompressed."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON-lines file."""
    # Not splitlines(): a line of JSON may hold other characters that end lines.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        try:
            if line:
                yield json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number} is not valid JSON: {error.msg}.") from None


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Replace a file of JSON lines atomically."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def derived(
    suite: str, kind: str, sources: Sequence[Path], made_by: Sequence[str], write: Callable[[Path], None]
) -> Path:
    """Return a sealed folder built from `sources`, unless one from the same bytes and code exists.

    Its name contains a digest of the sources and the code, so that an older run still finds its own after the code has
    changed.

    Args:
        suite: the suite whose cache it is in.
        kind: prefix of the folder name.
        sources: the source files.
        made_by: further facts that determine the content: the digest of the module that builds it, settings.
        write: fills an empty folder.
    """
    mark = hashlib.blake2b("".join((*made_by, *map(digest, sources))).encode(), digest_size=6).hexdigest()
    folder = cache_folder(suite) / f"{kind}-{mark}"
    if not folder.is_dir() or damage(folder) is not None:
        tell(f"Preparing `{kind}` of the suite `{suite}`, which is kept in {folder}.")
        with new_folder(folder) as new:
            write(new)
    return folder
