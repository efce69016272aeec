"""Find the files of a folder that are training text: a README and the splits for validation and testing are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everlearn import wording
from everlearn.data.whole_files import WHOLE
from everlearn.errors import DataError

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "devel"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""Words in the names of files and folders → split, as `datasets` reads them."""
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|citation|changelog|authors|contributing)([._-].*)?", re.I)
"""Names of files about a data set."""
_OF_DATASETS = re.compile(r"dataset_infos?\.json|dataset_dict\.json|state\.json|cache-.*\.arrow")
"""Names of files that `datasets` writes beside the data."""
_PROSE = (".txt", ".text", ".md", ".rst")
"""Formats in which a file about the data may be written."""
NO_DATA = ("about the data", "format not known")
"""Why a file of a folder is no data."""
_DOCUMENTS = (*_PROSE, *WHOLE)
"""Formats of documents; the others are tables of rows."""


@dataclass(frozen=True)
class Inside:
    """The files of a folder.

    Attributes:
        read: the files to read.
        others: split → files that are not read.
        split: split that is read; "" if the file names do not indicate splits.
        beside: code and documents beside tables, which are not read.
        unread: why → further files that are not read.
    """

    read: list[Path]
    others: dict[str, list[Path]] = field(default_factory=dict)
    split: str = ""
    beside: list[Path] = field(default_factory=list)
    unread: dict[str, list[Path]] = field(default_factory=dict)

    def notes(self, name: str) -> list[str]:
        """Return notes on the files of a corpus that are not read: other splits, and documents beside tables."""
        notes = []
        if self.others:
            rest = ", ".join(f"{split} ({len(files)})" for split, files in self.others.items())
            notes.append(
                f"Of '{name}' the split '{self.split}' is read; files of other splits are not: {rest}. Name a file to "
                "read it, for example in `validation`."
            )
        if self.beside:
            notes.append(
                f"Of '{name}' the tables are read, and {wording.count(len(self.beside), 'file')} of code or documents "
                f"beside them, such as {self.beside[0]}, "
                f"{'is' if len(self.beside) == 1 else 'are'} not. To read them, name them by a pattern, such as "
                f"`**/*{self.beside[0].suffix}`."
            )
        return notes


def inside(folder: Path, format_of: Callable[[Path], str | None], wanted: str = "train") -> Inside:
    """Return the files to read in a folder, in a stable order; hidden files and folders are omitted.

    Args:
        folder: the folder.
        format_of: the suffix of a file's format; None where it is not known.
        wanted: the split to read.

    Raises:
        DataError: its files belong to splits, and none of them is the wanted one; or what is text is not clear.
    """
    every = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    files = [path for path in sorted(every) if not any(part.startswith(".") for part in path.parts)]
    data = [path for path in files if format_of(path) and not _OF_DATASETS.fullmatch(path.name)]
    documents = {path for path in data if format_of(path) in _DOCUMENTS}
    tables = [path for path in data if path not in documents]
    beside = [path for path in data if format_of(path) in WHOLE] if tables else []
    if beside and (len(beside) > len(tables) or all(format_of(path) == ".json" for path in tables)):
        raise DataError(
            f"{folder} holds {beside[0]} and {tables[0]}: it is not clear whether to read the code and documents or "
            f"the tables. Name them by a pattern, such as `{folder}/**/*{beside[0].suffix}` or "
            f"`{folder}/**/*{tables[0].suffix}`."
        )
    about, unknown = NO_DATA
    unread = {
        about: [path for path in files if format_of(path) and path not in data],
        unknown: [path for path in files if not format_of(path)],
    }
    if tables:  # beside tables a card or a script is about them; among documents it is one of them
        cards = [path for path in data if _is_card(path, format_of(path))]
        unread[about] += cards
        data = [path for path in data if path not in beside and path not in cards]
    unread = {why: [folder / path for path in paths] for why, paths in unread.items()}
    splits = {} if any(format_of(path) in WHOLE for path in data) else _by_split(data)
    if len(splits) < 2:
        return Inside([folder / path for path in data], beside=beside, unread=unread)
    if wanted not in splits:
        names = ", ".join(f"'{name}'" for name in splits)
        raise DataError(f"{folder} holds the splits {names}, and none for '{wanted}'. Name the files to read.")
    found = {name: [folder / path for path in paths] for name, paths in splits.items()}
    return Inside(found.pop(wanted), found, wanted, beside, unread)


def _is_card(path: Path, suffix: str | None) -> bool:
    return suffix in _PROSE and bool(_ABOUT.fullmatch(path.name))


def _by_split(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Group files by the split in their names; empty if any name has none."""
    found: dict[str, list[Path]] = {}
    for path in files:
        split = split_of(path)
        if split is None:
            return {}
        found.setdefault(split, []).append(path)
    return found


def split_of(path: Path) -> str | None:
    """Return the split that a path inside a folder names: in the file name, or else in the innermost folder."""
    for part in reversed(path.parts):
        words = re.findall(r"[a-z]+", part.lower())
        for word in words:
            if word in SPLITS:
                return SPLITS[word]
    return None
