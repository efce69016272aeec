"""Recognise text files whose lines are parts of documents, though a line is read as a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean, median, quantiles

from everlearn.data.corpus import Domain
from everlearn.data.documents import local_files
from everlearn.data.readers import is_plain_text
from everlearn.data.remote import is_remote
from everlearn.data.text_files import Limits, lines

FILES, LINES = 8, 1000
"""Number of files that are read, and of lines of each."""
FEWEST = 20
"""Fewest lines with text that are judged."""
_CLOSING = tuple(".!?:;\"')]”’")


def broken_lines_note(corpus: Domain) -> str | None:
    """Return a note if the lines of a local corpus look like parts of documents."""
    if corpus.on_hub or corpus.documents == "file" or is_remote(corpus.path):
        return None
    return broken_lines(corpus.name) if lines_are_parts(local_files(corpus), corpus.limits) else None


def broken_lines(name: str) -> str:
    """Return the note on a corpus whose lines look like parts of documents."""
    return (
        f"The lines of '{name}' look like parts of its documents (they are wrapped to a fixed width, or blank lines "
        "stand between groups of them), but each line is read as a document: set `documents: file`, or write each "
        "document in one line."
    )


def lines_are_parts(files: Sequence[Path], limits: Limits) -> bool:
    """Return whether text was wrapped to a fixed width, or blank lines stand between groups of short lines."""
    if not all(map(is_plain_text, files)):
        return False
    read = files[:FILES]
    groups = [group for file in read for group in _groups(file, limits)]
    texts = [text for group in groups for text in group]
    if len(texts) < FEWEST:
        return False
    widths = [len(text) for text in texts]
    open_ends = mean(not text.endswith(_CLOSING) for text in texts)
    wrapped = open_ends > 0.6 and quantiles(widths, n=20)[-1] <= 100 and median(widths) > 40
    grouped = len(groups) > 2 * len(read) and len(texts) >= 2 * len(groups) and median(widths) <= 120
    return wrapped or grouped


def _groups(file: Path, limits: Limits) -> Iterator[list[str]]:
    """Yield the lines of a file between blank ones."""
    group: list[str] = []
    for text, *_ in islice(lines(file, 0, 0, limits), LINES):
        if text.strip():
            group.append(text.strip())
        elif group:
            yield group
            group = []
    if group:
        yield group
