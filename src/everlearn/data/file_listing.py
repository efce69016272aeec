"""List the files of a corpus by format, split and use: which are read, which are held out, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from everlearn.data.arrow_rows import stored_rows
from everlearn.data.corpus import Domain
from everlearn.data.documents import local_files
from everlearn.data.folders import NO_DATA, clear_split, inside, split_of
from everlearn.data.readers import folder_of, format_of, is_plain_text, read_rows
from everlearn.data.whole_files import WHOLE
from everlearn.errors import DataError

READ, HELD_OUT = "read", "held out"
COUNTED = 256 * 2**20
"""Bytes of a group of text files up to which its rows are counted."""


@dataclass
class FileGroup:
    """Files of one format, one split and one use.

    Attributes:
        format: their suffix, without that of a compression.
        split: the split that their names tell; "" if none.
        use: `read`, `held out`, or why they are not read.
        files: number of files.
        bytes: their size on disk.
        rows: number of rows; None if they are not data, damaged, or too large to count.
    """

    format: str
    split: str
    use: str
    files: int = 0
    bytes: int = 0
    rows: int | None = 0


def files_of(corpus: Domain) -> list[FileGroup]:
    """Return the files of a corpus in groups, those that are read first; none for a data set of the hub.

    Raises:
        DataError: there are no files.
    """
    groups: dict[tuple[str, str, str], FileGroup] = {}
    for path, split, use in _uses(corpus):
        suffix = format_of(path) or path.suffix or path.name
        group = groups.setdefault((suffix, split, use), FileGroup(suffix, split, use))
        group.files += 1
        group.bytes += path.stat().st_size
        rows = None if group.rows is None or use in NO_DATA else _rows(path, group.bytes, corpus)
        group.rows = None if rows is None or group.rows is None else group.rows + rows
    return list(groups.values())


def _uses(corpus: Domain) -> Iterator[tuple[Path, str, str]]:
    """Yield each file with the split in its name and its use."""
    if corpus.on_hub:
        return
    other = corpus.held_out_corpus
    held_out = [] if other is None or other.on_hub else local_files(other)
    folder, split = folder_of(corpus.path), ""
    if folder is not None:
        contents = inside(folder, format_of, corpus.split)
        split = contents.split
        uses = {
            READ: contents.read,
            f"another split than '{contents.split}'": [path for paths in contents.others.values() for path in paths],
            "code or documents beside tables": [folder / path for path in contents.beside],
            **contents.unread,
        }
    else:
        uses = {READ: local_files(corpus)}
    for use, paths in uses.items():
        for path in paths:
            if use == READ or path not in held_out:
                yield path, _split(path, folder, split), use
    for path in held_out:
        yield path, _split(path, folder, split), HELD_OUT


def _split(path: Path, folder: Path | None, read: str) -> str:
    """Return the split that the name of a file or of its folder inside the corpus indicates; "" if none.

    If no split is read, a prose name that merely contains the word, such as "the test of time", indicates none.
    """
    inside = path.relative_to(folder) if folder is not None and path.is_relative_to(folder) else Path(path.name)
    return (split_of(inside) if read else clear_split(inside, format_of(path))) or ""


def _rows(path: Path, size: int, corpus: Domain) -> int | None:
    """Return the number of rows of a file; None if it is damaged, or if its group is too large to be counted.

    A file that holds one document counts as one row without being read, since extracting text from a PDF takes time.
    """
    if format_of(path) in WHOLE or (corpus.documents == "file" and is_plain_text(path)):
        return 1
    try:
        if (stored := stored_rows(path)) is not None:
            return stored
        if size > COUNTED:
            return None
        return sum(1 for _ in read_rows(path, (), limits=corpus.limits))
    except DataError:
        return None
