"""Where the suite's data is looked for, and where what is made of it is kept."""

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

VARIABLE = "EVERLEARN_SIX_DOMAINS"
LAYOUT = (
    "a folder with `domains/<corpus>/{train,validation}.jsonl.gz` (corpora: yelp_restaurants, acl_papers, ai_papers, "
    "amazon_electronics, pubmed_rct), `D0/{wikipedia,books}/{train,validation}.jsonl.gz` and `six_end_tasks_raw/` "
    "(the end tasks as they were published; docs/six-domains.md lists the files)"
)
HOW = f"Set {VARIABLE}, or `--data` of `everlearn bench`, to {LAYOUT}."


def data_folder(given: Path | str | None = None) -> Path:
    """The folder with the suite's data.

    Args:
        given: the folder; by default what the environment variable EVERLEARN_SIX_DOMAINS names.

    Raises:
        DataError: none is named, or it is not there.
    """
    named = given if given is not None else os.environ.get(VARIABLE)
    if not named:
        raise DataError(f"The suite `six-domains` brings no data along. {HOW}")
    folder = Path(named).expanduser()
    if not folder.is_dir():
        key = "`data`" if given is not None else VARIABLE
        raise DataError(f"{key} is '{folder}', and there is no such folder. {HOW}")
    return folder.resolve()


def find(folder: Path, name: str, wanted_for: str, instead: str) -> Path:
    """A file of the data, compressed or not.

    Args:
        folder: with the data.
        name: inside it, without ``.gz``.
        wanted_for: what needs it, for the error.
        instead: what to do where it cannot be had, for the error.

    Raises:
        DataError: it is not there.
    """
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise DataError(
        f"The suite `six-domains` needs '{folder / name}.gz' (or without .gz) for {wanted_for}, and it is not there. "
        f"{instead}"
    )


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


def derived(kind: str, sources: Sequence[Path], code: str, write: Callable[[Path], None]) -> Path:
    """A sealed folder made of `sources`, unless it is there already, made of the same bytes by the same code.

    Its name says what it was made of, so that a run of last month still finds its own after the code has changed.

    Args:
        kind: begins the folder's name.
        sources: the files that it is made of.
        code: file of the module that makes it.
        write: fills an empty folder.
    """
    mark = hashlib.blake2b("".join(map(digest, (Path(code), *sources))).encode(), digest_size=6).hexdigest()
    folder = cache_folder() / f"{kind}-{mark}"
    if not folder.is_dir() or damage(folder) is not None:
        with new_folder(folder) as new:
            write(new)
    return folder


def cache_folder() -> Path:
    """``six-domains`` in $EVERLEARN_CACHE, else in ``everlearn`` of the user's cache folder."""
    if own := os.environ.get("EVERLEARN_CACHE"):
        return Path(own) / "six-domains"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everlearn" / "six-domains"
