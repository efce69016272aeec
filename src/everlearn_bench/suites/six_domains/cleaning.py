"""Build a corpus from documents: clean, deduplicate, remove overlap with an end task, shuffle by hash and split."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from everlearn_bench.suites.six_domains.tasks import read_raw

RUN = 13
"""Words in a row that a document may not share with an example of its domain's end task."""
START = 300
"""Letters and digits at the beginning by which two documents are one."""
NEAR = 0.3
"""Share of its runs of words at which a held-out document counts as a copy of what is learnt."""
PARTS = ("validation", "test", "train")
_NOT_TEXT = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]")
Document = Sequence[str]
"""The records that it is cut into; most documents are one."""


def clean(text: str) -> str:
    """Normalise text: Unicode NFC, without HTML entities, ASCII control characters and surrogates, with single blanks.

    Lines have no blanks around them.
    """
    plain = unicodedata.normalize("NFC", html.unescape(text))
    lines = (" ".join(line.split()) for line in _NOT_TEXT.sub(" ", plain).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def key(text: str) -> str:
    """Return a digest of the first letters and digits of a text; empty if there are none."""
    start = "".join(filter(str.isalnum, text.lower()))[:START]
    return hashlib.blake2b(start.encode(), digest_size=8).hexdigest() if start else ""


def runs(text: str) -> set[str]:
    """Return all sequences of :data:`RUN` consecutive words."""
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


def runs_of(tasks: Iterable[Path]) -> set[str]:
    """Return the sequences of words of all examples in the published files of an end task."""
    return {run for path in tasks for row in read_raw(path) for run in runs(row.get("sentence", row["text"]))}


def write(
    folder: Path, documents: Iterable[Document], known: set[str], most: int | None = None, held_out: int = 20
) -> dict[str, int]:
    """Fill ``train``, ``validation`` and ``test.jsonl.gz``, in an order determined by hashes.

    Args:
        folder: the folder to fill.
        documents: as they were published. The middle of a long one determines whether it is a copy of another: books of
            a series begin alike.
        known: sequences of words that no document may contain.
        most: bytes of text to keep; a document is kept completely or not at all.
        held_out: one in `held_out` documents is held out for each of validation and test.

    Returns:
        The number of documents that were read, dropped for each reason, and written.
    """
    kept: dict[str, Document] = {}
    read = shared = 0
    for document in documents:
        records = [text for record in document if (text := clean(record))]
        mark = key(records[len(records) // 2]) if records else ""
        if not mark:
            continue
        read += 1
        if known and any(not known.isdisjoint(runs(text)) for text in records):
            shared += 1
        else:
            kept.setdefault(mark, records)
    chosen, size = [], 0
    for mark in sorted(kept):
        size += sum(len(text.encode()) for text in kept[mark])
        if most is not None and size > most:
            break
        chosen.append(kept[mark])
    number = -(-len(chosen) // held_out)
    train = chosen[2 * number :]
    clear = [_clear_of(train, chosen[part * number : (part + 1) * number]) for part in range(2)]
    for part, split in zip(PARTS, (*clear, train), strict=True):
        lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for records in split for text in records)
        (folder / f"{part}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    written = {part: len(split) for part, split in zip(PARTS, (*clear, train), strict=True)}
    return {"read": read, "shared with the end task": shared, "different": len(kept), **written}


def _clear_of(train: Iterable[Document], held: Sequence[Document]) -> list[Document]:
    """Return the held-out documents that hardly overlap with the training documents word for word."""
    own = [{run for text in document for run in runs(text)} for document in held]
    watched = set[str]().union(*own)
    seen = {run for document in train for text in document for run in watched & runs(text)}
    return [
        document
        for document, document_runs in zip(held, own, strict=True)
        if len(document_runs & seen) <= NEAR * len(document_runs)
    ]
