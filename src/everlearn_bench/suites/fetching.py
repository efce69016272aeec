"""Fetch the data of a suite into the user's cache: complete files whose digests match, or an error message."""

from __future__ import annotations

import gzip
import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from everlearn import files
from everlearn.errors import DataError, RunError
from everlearn_bench.suites.archives import broken
from everlearn_bench.suites.base import Suite
from everlearn_bench.suites.cache import FETCHED, cache_folder
from everlearn_bench.suites.overlay import Overlay
from everlearn_bench.suites.sources import Fetchable

RECORD = "fetched.json"
"""What was fetched, in the folder with it: path → address, digest and bytes."""
CONNECT, WAIT = 10.0, 60.0
"""Seconds after which a server that takes no connection counts as out of reach, and one that says nothing as silent."""
_PIECE = 2**20
Say = Callable[[str], None]


def fetch(suite: Suite, say: Say = lambda text: None, overlay: Overlay | None = None) -> Path:
    """Fetch all missing data of a suite; complete files are left alone.

    Every file is downloaded to a temporary path and moved into place when it is complete and has the known digest, so
    an interrupted command continues with the next one. If no digest is known, that of the first fetch is recorded, and
    later fetches must match it. Finally the suite builds its derived files.

    Args:
        suite: the suite.
        say: called with progress messages.
        overlay: changes of the suite that the data is for; all data by default.

    Returns:
        The folder with the data, for ``--data``; later runs find it themselves.

    Raises:
        DataError: the suite has nothing to fetch, or a file could not be fetched or built; the message says which, why,
            and where to get it by hand. Fetched files stay.
    """
    if not suite.sources:
        raise DataError(f"`--data fetch`: the suite `{suite.name}` has nothing to fetch: it makes its own data.")
    folder = cache_folder(suite.cache or suite.name) / FETCHED
    failures: list[str] = []
    out_of_reach: set[str] = set()
    sources = suite.sources if overlay is None else suite.selected_sources(suite.config_of(overlay))
    for number, source in enumerate(sources, 1):
        try:
            if _has(folder, source):
                continue
            host = urlsplit(source.address).netloc
            if host in out_of_reach:  # do not wait for the same host again
                failures.append(f"{source.address} is at {host}, which is out of reach.")
                continue
            say(f"Fetching {source.path} from {host} ({number} of {len(sources)})")
            _fetch(folder, source)
        except _OutOfReach as error:
            say(str(error))
            out_of_reach.add(host)
            failures.append(str(error))
        except DataError as error:
            say(str(error))
            failures.append(str(error))
    more = f" ({len(failures)} of {len(sources)} files are missing.)" if len(failures) > 1 else ""
    failures += suite.make(folder, known_of(folder), say)
    if failures:
        raise DataError(
            f"{failures[0]}{more} The same command downloads the missing files; the files so far are in {folder}. "
            f"{suite.by_hand}".strip()
        )
    return folder


def known_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recorded facts about the fetched files in a folder."""
    try:
        record = files.read_json(folder / RECORD)
        return record if isinstance(record, dict) else {}
    except RunError:
        return {}


def _expected_digest(folder: Path, source: Fetchable) -> str:
    """Return the digest that a file must have; empty if none is known."""
    return source.sha256 or str(known_of(folder).get(source.path, {}).get("sha256", ""))


def _has(folder: Path, source: Fetchable) -> bool:
    """Return whether the file exists with the right digest."""
    place, expected = folder / source.path, _expected_digest(folder, source)
    if not place.is_file():
        return False
    with place.open("rb") as file:
        return not expected or hashlib.file_digest(file, "sha256").hexdigest() == expected


def _fetch(folder: Path, source: Fetchable) -> None:
    place, expected = folder / source.path, source.sha256 if source.packed else _expected_digest(folder, source)
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{files.PARTIAL}{place.name}")
    try:
        digest, size = _downloaded(source.address, partial)
        if expected and digest != expected:
            raise DataError(
                f"{source.address} holds another file than the one that is known as {source.path}: its SHA-256 is "
                f"{digest}, not {expected}."
            )
        if wrong := _misshapen(partial, source):
            raise DataError(
                f"{source.address} holds another file than the one that is known as {source.path}: {wrong}."
            )
        record = known_of(folder) | {source.path: {"address": source.address, "sha256": digest, "bytes": size}}
        partial.replace(place)
        files.write_json(folder / RECORD, record)
    finally:
        partial.unlink(missing_ok=True)


def _misshapen(file: Path, source: Fetchable) -> str:
    """Describe how the content of a file differs from its known form; empty if it does not."""
    if source.packed:
        return broken(file)
    if not source.rows:
        return ""
    try:
        content = file.read_bytes()
        text = (gzip.decompress(content) if source.path.endswith(".gz") else content).decode("utf-8")
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, EOFError, ValueError) as error:
        return f"it is no file of JSON lines ({error})"
    if len(rows) != source.rows:
        return f"it has {len(rows):,} rows, not {source.rows:,}"
    lacking = (name for row in rows for name in source.columns if not isinstance(row, dict) or name not in row)
    return next((f"a row of it has no `{name}`" for name in lacking), "")


def _downloaded(address: str, to: Path) -> tuple[str, int]:
    """Download an address to a file; return its SHA-256 and its size in bytes."""
    digest, size = hashlib.sha256(), 0
    request = urllib.request.Request(address, headers={"User-Agent": "everlearn"})
    opener = urllib.request.build_opener(_Open)
    try:
        with opener.open(request, timeout=WAIT) as answer, files.writing(to), to.open("wb") as file:
            for piece in _pieces(answer):
                digest.update(piece)
                size += len(piece)
                file.write(piece)
    except _Broken as error:
        raise DataError(f"{address} could not be fetched: {error}.") from None
    except (OSError, ValueError, HTTPException) as error:
        nobody = isinstance(error, urllib.error.URLError) and not isinstance(error, urllib.error.HTTPError)
        kind = _OutOfReach if nobody else DataError
        raise kind(f"{address} could not be fetched: {getattr(error, 'reason', None) or error}.") from None
    return digest.hexdigest(), size


class _OutOfReach(DataError):
    """A server cannot be reached: there is no network, or no such server."""


class _Hasty(HTTPConnection):
    """A connection that waits less long for connecting than for reading."""

    def connect(self) -> None:
        """Connect within :data:`CONNECT` seconds."""
        wait, self.timeout = self.timeout, CONNECT
        super().connect()
        self.timeout = wait
        self.sock.settimeout(wait)


class _HastySecure(_Hasty, HTTPSConnection):
    """The same with TLS."""


class _Open(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_Hasty, req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(_HastySecure, req)


class _Broken(Exception):
    """A server stopped responding; not an ``OSError``, which would look like a disk that is not writable."""


def _pieces(answer: Any) -> Iterator[bytes]:
    """Yield the parts of a response, and check that it is as long as announced."""
    left = answer.headers.get("Content-Length")
    remaining = None if left is None else int(left)
    while True:
        try:
            piece = answer.read(_PIECE)
        except (OSError, HTTPException) as error:
            raise _Broken(str(error) or type(error).__name__) from None
        if not piece:
            break
        remaining = None if remaining is None else remaining - len(piece)
        yield piece
    if remaining:
        raise _Broken(f"it was cut off {remaining:,} bytes before its end")
