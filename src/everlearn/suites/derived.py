"""What suites make of their data: sealed folders in the user's cache, and files of JSON lines."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import DataError
from everlearn.files import damage, digest, new_folder, write_text

FETCHED = "fetched"
"""Folder in a suite's cache with what was fetched for it."""


def cache_folder(suite: str) -> Path:
    """The suite's folder in $EVERLEARN_CACHE, else in ``everlearn`` of the user's cache folder."""
    if own := os.environ.get("EVERLEARN_CACHE"):
        return Path(own) / suite
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everlearn" / suite


def data_folder(cache: str, variable: str, given: Path | str | None, how: str) -> Path:
    """The folder with a suite's data: the one that is given, else what the variable names, else what was fetched.

    Args:
        cache: name of its folder in the cache.
        variable: of the environment.
        given: the folder; None for none.
        how: sentence that says what is wanted and how to name it, for the error.

    Raises:
        DataError: none is named and nothing was fetched, or it is not there.
    """
    named = given if given is not None else os.environ.get(variable)
    fetched = cache_folder(cache) / FETCHED
    if not named and fetched.is_dir():
        return fetched.resolve()
    if not named:
        raise DataError(f"`{cache}` brings no data along. {how}")
    folder = Path(named).expanduser()
    if not folder.is_dir():
        key = "`data`" if given is not None else variable
        raise DataError(f"{key} is '{folder}', and there is no such folder. {how}")
    return folder.resolve()


def read_text(path: Path) -> str:
    """A whole file, decompressed."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return raw.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines."""
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
    """A sealed folder made of `sources`, unless it is there already, made of the same bytes in the same way.

    Its name says what it was made of, so that a run of last month still finds its own after the code has changed.

    Args:
        suite: whose cache it lies in.
        kind: begins the folder's name.
        sources: the files that it is made of.
        made_by: what else decides what is in it: the digest of the module that makes it, settings.
        write: fills an empty folder.
    """
    mark = hashlib.blake2b("".join((*made_by, *map(digest, sources))).encode(), digest_size=6).hexdigest()
    folder = cache_folder(suite) / f"{kind}-{mark}"
    if not folder.is_dir() or damage(folder) is not None:
        with new_folder(folder) as new:
            write(new)
    return folder
