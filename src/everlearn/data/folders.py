"""Find the files of a folder that are training text: a README and the splits for validation and testing are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everlearn import wording
from everlearn.data.whole_files import CODE, WHOLE
from everlearn.errors import DataError

SPLITS = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "devel", "heldout", "holdout"), "validation"),
    **dict.fromkeys(("test", "testing", "tst", "eval", "evaluation"), "test"),
}
"""Words in the names of files and folders → split, as `datasets` reads them, and a few more."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""A word in a name, such as both of `TrainSet`."""
_HELD_OUT = re.compile(r"(held|hold)[._ -]?out", re.I)
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|citation|changelog|authors|contributing)([._-].*)?", re.I)
"""Names of files about a data set."""
_OF_DATASETS = re.compile(r"dataset_infos?\.json|dataset_dict\.json|state\.json|cache-.*\.arrow|croissant\.json")
"""Names of files that `datasets` and hubs write beside the data."""
_METADATA = re.compile(r"metadata\.(jsonl?|csv|parquet)", re.I)
"""Names of tables about a data set, where there are other tables; alone, as beside images, they are data."""
_OF_PROJECTS = re.compile(
    r"(package|package-lock|composer|manifest|angular|deno|lerna|nx|turbo|vercel|pyrightconfig|[jt]sconfig([.-].*)?"
    r"|[\w.-]+\.config|\w*lintrc|\w*prettierrc)\.json",
    re.I,
)
"""Names of settings that stand in a tree of code, and are no rows there."""
_PROSE = (".txt", ".text", ".md", ".rst")
"""Formats in which a file about the data may be written."""
NO_DATA = ("about the data", "format not known")
"""Why a file of a folder is no data."""
NO_SPLIT = "no split in its name"
"""Why a file is not read where others have splits in their names."""
_DOCUMENTS = (*_PROSE, *WHOLE)
"""Formats of documents; the others are tables of rows."""
_SPLIT_OF_PROSE = re.compile(r"(train|validation|valid|val|dev|test)([._-]?\d.*)?", re.I)
"""Names of prose that are nothing but a split and a number: the documents `training.md` and `test-plan.md` are none."""
NAMED = 4
"""Most names of files or folders in a note."""


@dataclass(frozen=True)
class Inside:
    """The files of a folder.

    Attributes:
        folder: the folder.
        read: the files to read.
        others: split → files that are not read.
        split: split that is read; "" if the file names do not indicate splits.
        beside: code and documents beside tables, which are not read.
        unread: why → further files that are not read.
        odd: split → files that are read although their names indicate this other split.
        together: folders inside this one with files of the same names, which are read together.
    """

    folder: Path
    read: list[Path]
    others: dict[str, list[Path]] = field(default_factory=dict)
    split: str = ""
    beside: list[Path] = field(default_factory=list)
    unread: dict[str, list[Path]] = field(default_factory=dict)
    odd: dict[str, list[Path]] = field(default_factory=dict)
    together: list[str] = field(default_factory=list)

    def notes(self, name: str, held_out: str = "") -> list[str]:
        """Return notes on what is read of a corpus: which splits and folders, and which files are left out.

        Args:
            name: name of the corpus.
            held_out: the split that is held out, which is not left out.
        """
        notes = []
        others = {split: files for split, files in self.others.items() if split != held_out}
        if others:
            notes.append(
                f"Of '{name}' the split '{self.split}' is read, which names of files or folders tell; other splits are "
                f"not ({_by_name(others, self.folder)}). Name a file to read it, for example in `validation`. If these "
                "names mean no splits, name all files by a pattern in `path`."
            )
        if unnamed := self.unread.get(NO_SPLIT):
            notes.append(
                f"Of '{name}' {wording.count(len(unnamed), 'file')} without a split in the name "
                f"{'is' if len(unnamed) == 1 else 'are'} not read, because others have one: "
                f"{_names(unnamed, self.folder)}. To read all files, name them by a pattern in "
                "`path`, or put the split into each name."
            )
        if self.odd:
            notes.append(odd_note(name, self.odd, self.folder))
        if self.together:
            notes.append(
                f"Of '{name}' the folders {_listed(self.together)} are read together, and hold files of the same "
                "names. If they are configurations of one data set, name one of them in `path`."
            )
        if self.beside:
            notes.append(
                f"Of '{name}' the tables are read, and {wording.count(len(self.beside), 'file')} of code or documents "
                f"beside them, such as {self.beside[0]}, "
                f"{'is' if len(self.beside) == 1 else 'are'} not. To read them, name them by a pattern, such as "
                f"`**/*{self.beside[0].suffix}`."
            )
        return notes


def inside(folder: Path, format_of: Callable[[Path], str | None], *split_names: str) -> Inside:
    """Return the files to read in a folder, in a stable order; hidden files and folders are omitted.

    Args:
        folder: the folder.
        format_of: the suffix of a file's format; None where it is not known.
        split_names: the split to read, or several, of which the first that exists is read; default: `train`.

    Raises:
        DataError: its files belong to splits, and none of them is a wanted one; or what is text is not clear.
    """
    split_names = split_names or ("train",)
    every = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    files = [path for path in sorted(every) if not any(part.startswith(".") for part in path.parts)]
    data = [path for path in files if format_of(path) and not _OF_DATASETS.fullmatch(path.name)]
    described = [path for path in data if format_of(path) not in _DOCUMENTS and not _METADATA.fullmatch(path.name)]
    if described:
        data = [path for path in data if not _METADATA.fullmatch(path.name)]
    if any(format_of(path) in CODE for path in data):
        data = [path for path in data if not _OF_PROJECTS.fullmatch(path.name)]
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
    cards = [path for path in data if _is_card(path, format_of(path))]
    rest = [path for path in data if path not in beside and path not in cards]
    splits = {} if any(format_of(path) in WHOLE for path in rest) else _by_split(rest, format_of)
    if tables or splits:  # beside tables or splits a card is about them; among documents it is one of them
        unread[about] += cards
        data = rest
    unread = {why: [folder / path for path in paths] for why, paths in unread.items()}
    files_by_split = {name: [folder / path for path in paths] for name, paths in splits.items()}
    if not files_by_split:
        read = [folder / path for path in data]
        return Inside(
            folder, read, beside=beside, unread=unread, odd=odd_splits(data, format_of, folder, split_names[0])
        )
    split = next((each for each in split_names if each in files_by_split), None)
    if split is None:
        names = ", ".join(f"'{name}'" for name in files_by_split if name)
        raise DataError(f"{folder} holds the splits {names}, and none for '{split_names[0]}'. Name the files to read.")
    if unnamed := files_by_split.pop("", []):
        unread[NO_SPLIT] = unnamed
    together = _together(splits[split])
    return Inside(folder, files_by_split.pop(split), files_by_split, split, beside, unread, together=together)


def odd_splits(
    files: Sequence[Path], format_of: Callable[[Path], str | None], root: Path, expected_split: str
) -> dict[str, list[Path]]:
    """Return the files whose names indicate another split than the wanted one, by split.

    Args:
        files: paths inside `root`.
        format_of: the suffix of a file's format.
        root: the folder.
        expected_split: the split that is meant to be read.
    """
    odd: dict[str, list[Path]] = {}
    for path in files:
        split = clear_split(path, format_of(path))
        if split and split != expected_split:
            odd.setdefault(split, []).append(root / path)
    return odd


def odd_note(name: str, odd: dict[str, list[Path]], root: Path) -> str:
    """Return a note on files inside a folder that are read although their names indicate other splits."""
    return (
        f"Of '{name}' files are read, and learnt, whose names indicate another split ({_by_name(odd, root)}). If they "
        "are for testing, name the other files in `path`."
    )


def _by_name(splits: dict[str, list[Path]], root: Path) -> str:
    return "; ".join(f"{split}: {_names(paths, root)}" for split, paths in splits.items())


def _names(paths: Sequence[Path], root: Path) -> str:
    return _listed([path.relative_to(root).as_posix() for path in paths])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


def _is_card(path: Path, suffix: str | None) -> bool:
    return suffix in _PROSE and bool(_ABOUT.fullmatch(path.name))


def _by_split(files: Sequence[Path], format_of: Callable[[Path], str | None]) -> dict[str, list[Path]]:
    """Group files by the split in their names, those without one under ""; empty if the names indicate fewer than two.

    Where some names of prose have no split, those of the others, or of their folders, must be nothing but one, and one
    of them `train`: a folder of documents may well have some on training and testing. Folders that are no split, beside
    others, are the parts of such documents, and then only names of files count.
    """
    splits = [split_of(path) for path in files]
    if None in splits:
        splits = [clear_split(path, format_of(path)) for path in files]
        if all(format_of(path) in _PROSE for path in files):
            if any(split is None and len(path.parts) > 1 for path, split in zip(files, splits, strict=True)):
                splits = [clear_split(Path(path.name), format_of(path)) for path in files]
            if "train" not in splits:
                return {}
    groups: dict[str, list[Path]] = {}
    for path, split in zip(files, splits, strict=True):
        groups.setdefault(split or "", []).append(path)
    return groups if len(groups.keys() - {""}) > 1 else {}


def clear_split(path: Path, suffix: str | None) -> str | None:
    """Return the split that the name of a table indicates, or that of prose or of its folder if it is nothing else."""
    if suffix in WHOLE:
        return None
    if suffix not in _PROSE:
        return split_of(path)
    names = (path.name.split(suffix)[0], *reversed(path.parts[:-1]))
    match = next(filter(None, map(_SPLIT_OF_PROSE.fullmatch, names)), None)
    return SPLITS[match[1].lower()] if match else None


def _together(files: Sequence[Path]) -> list[str]:
    """Return the folders of files that have the same name as one in another folder."""
    folders: dict[str, set[str]] = {}
    for path in files:
        folders.setdefault(path.name, set()).add(str(path.parent))
    return sorted({folder for own in folders.values() if len(own) > 1 for folder in own})


def split_of(path: Path) -> str | None:
    """Return the split that a path inside a folder names: in the file name, or else in the innermost folder."""
    for part in reversed(path.parts):
        for word in _WORD.findall(_HELD_OUT.sub("heldout", part)):
            if word.lower() in SPLITS:
                return SPLITS[word.lower()]
    return None
