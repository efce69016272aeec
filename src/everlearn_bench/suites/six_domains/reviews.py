"""Build phone and camera from published reviews (FDU-MTL), if the data folder has no proxies of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from everlearn.errors import DataError
from everlearn_bench.suites.six_domains.cache import find, read_text, write_lines
from everlearn_bench.suites.six_domains.cleaning import clean, key, runs, runs_of
from everlearn_bench.suites.six_domains.tasks import RAW, TASKS

FOLDER = "reviews"
KINDS = ("unlabel", "train")
"""A review a line; in the second file behind a label and a tab, tokenised and in lower case."""
HELD_OUT = 20
"""One review in so many is held out."""


def published(category: str, data: Path) -> list[Path]:
    """Return the two files of a product category; empty if one is missing."""
    files = [data / FOLDER / f"{category}.task.{kind}" for kind in KINDS]
    return files if all(path.is_file() for path in files) else []


def examples(domain: str, data: Path) -> list[Path]:
    """Return the published files of the end task that the text of a domain must not overlap with.

    Raises:
        DataError: one is missing.
    """
    instead = "The text is kept clear of it: `everlearn bench six-domains --data fetch` gets both."
    names = (*TASKS[domain].train, *TASKS[domain].test)
    return [find(data, f"{RAW}/{name}", f"the domain '{domain}'", instead) for name in names]


def write(folder: Path, reviews: Sequence[Path], tasks: Sequence[Path]) -> None:
    """Fill ``train.jsonl`` and ``validation.jsonl``, in an order determined by hashes.

    Args:
        folder: the folder to fill.
        reviews: the two published files.
        tasks: the files that the reviews must not overlap with.

    Raises:
        DataError: a file has other content.
    """
    known = runs_of(tasks)
    kept: dict[str, str] = {}
    for text in map(clean, _published(reviews)):
        if (mark := key(text)) and known.isdisjoint(runs(text)):
            kept.setdefault(mark, text)
    texts = [{"text": kept[mark]} for mark in sorted(kept)]
    held_out = -(-len(texts) // HELD_OUT)
    write_lines(folder / "validation.jsonl", texts[:held_out])
    write_lines(folder / "train.jsonl", texts[held_out:])


def _published(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        for number, line in enumerate(read_text(path).split("\n"), 1):
            if path.name.endswith(".train") and line:
                label, tab, line = line.partition("\t")
                if label not in ("0", "1") or not tab:
                    raise DataError(f"{path}, line {number} is no label, tab and review: it begins '{label[:20]}'.")
            yield line
