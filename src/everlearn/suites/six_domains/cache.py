"""Where the suite's data is looked for, and where what is made of it is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from everlearn.errors import DataError
from everlearn.files import digest
from everlearn.suites import derived as made
from everlearn.suites.derived import read_lines, read_text, write_lines

__all__ = ["VARIABLE", "cache_folder", "data_folder", "derived", "find", "read_lines", "read_text", "write_lines"]

NAME = "six-domains"
VARIABLE = "EVERLEARN_SIX_DOMAINS"
LAYOUT = (
    "a folder with `domains/<corpus>/{train,validation}.jsonl.gz` (corpora: yelp_restaurants, acl_papers, ai_papers, "
    "amazon_electronics, pubmed_rct), `D0/{wikipedia,books}/{train,validation}.jsonl.gz` and `six_end_tasks_raw/` "
    "(the end tasks as they were published; docs/six-domains.md lists the files)"
)
HOW = (
    f"Set {VARIABLE}, or `--data` of `everlearn bench`, to {LAYOUT}. `everlearn bench {NAME} --data fetch` gets what "
    "can be fetched of it."
)


def data_folder(given: Path | str | None = None) -> Path:
    """The folder with the suite's data.

    Args:
        given: the folder; by default what the environment variable EVERLEARN_SIX_DOMAINS names, or what was fetched.

    Raises:
        DataError: none is named, or it is not there.
    """
    return made.data_folder(NAME, VARIABLE, given, HOW)


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


def derived(kind: str, sources: Sequence[Path], code: str, write: Callable[[Path], None]) -> Path:
    """A sealed folder of the suite's cache made of `sources` by the module whose file is `code`."""
    return made.derived(NAME, kind, sources, (digest(Path(code)),), write)


def cache_folder() -> Path:
    """``six-domains`` in $EVERLEARN_CACHE, else in ``everlearn`` of the user's cache folder."""
    return made.cache_folder(NAME)
