"""Locate the data of the suite, and the files that are built from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from everlearn.errors import DataError
from everlearn.files import digest
from everlearn_bench.suites import cache as suite_cache
from everlearn_bench.suites.cache import read_lines, read_text, write_lines

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
data_folder = partial(suite_cache.data_folder, NAME, VARIABLE, HOW)
"""Return the folder with the data of the suite: the given one, that of the variable, or the fetched data."""


def find(folder: Path, name: str, wanted_for: str, instead: str) -> Path:
    """Return a file of the data, compressed or not.

    Args:
        folder: the data folder.
        name: path inside it, without ``.gz``.
        wanted_for: the purpose of the file, for the error message.
        instead: what to do if it is not available, for the error message.

    Raises:
        DataError: the file does not exist.
    """
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise DataError(
        f"The suite `six-domains` needs '{folder / name}.gz' (or without .gz) for {wanted_for}, and it is not there. "
        f"{instead}"
    )


def derived(kind: str, sources: Sequence[Path], code: str, write: Callable[[Path], None]) -> Path:
    """Return a sealed folder in the suite's cache, built from `sources` by the module whose file is `code`."""
    return suite_cache.derived(NAME, kind, sources, (digest(Path(code)),), write)


cache_folder = partial(suite_cache.cache_folder, NAME)
"""Return the cache folder ``six-domains``, in $EVERLEARN_CACHE or in ``everlearn`` of the user's cache folder."""
