"""Layouts of a corpus of domains: M2D2's tarballs and folders, your own folders, or the built-in table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from everlearn.data.blocks import hash_of
from everlearn.data.documents import DIGEST_UP_TO
from everlearn.errors import DataError
from everlearn.files import digest
from everlearn_bench.suites.archives import BROKEN, contents, lines
from everlearn_bench.suites.m2d2.domain_names import JUNK, NAMES, Branch, branch_of

PARTS = ("train", "valid", "test")
TAR = ".tar.gz"
GENERAL = "general"
"""A folder of general text beside the domains: ``general/{train,valid}.txt``."""
Texts = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Leaf:
    """A domain on disk.

    Attributes:
        name: name of the domain.
        branch: super-domain, group and level.
        texts: part → a function that reads its documents.
        mark: changes when the files do.
    """

    name: str
    branch: Branch
    texts: Mapping[str, Texts]
    mark: str


@dataclass(frozen=True)
class Taxonomy:
    """All domains of a corpus with two levels.

    Attributes:
        leaves: in the order in which they are listed.
        lines: whether a document is a line of a text that continues in the next one.
        most_bytes: default limit of a domain's training text.
        general: training and held-out general text, as the keys of a recipe's domain; None if there is none.
        notes: sentences for reports.
    """

    leaves: tuple[Leaf, ...]
    lines: bool = True
    most_bytes: int | None = None
    general: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())


def read_folder(folder: Path) -> Taxonomy:
    """Return the domains in a folder of tarballs or folders with ``train.txt``, ``valid.txt`` and ``test.txt``.

    Items directly in the folder have the names of M2D2; deeper ones have the name of their last folder, and the folders
    above are super-domain and group: ``<super-domain>/<domain>`` or ``<super-domain>/<group>/<domain>``.

    Raises:
        DataError: there is none, one lacks a part, two have the same name, or a name in the folder is not one of
            M2D2's.
    """
    if (folder / "train.txt").is_file():
        raise DataError(f"'{folder}' is a domain itself: name its parent folder.")
    tars = {path.with_name(path.name.removesuffix(TAR)): path for path in _below(folder) if path.name.endswith(TAR)}
    folders = {path.parent: path.parent for path in _below(folder) if path.name == "train.txt"}
    leaves: dict[str, Leaf] = {}
    known = {name: place for place, name in enumerate(NAMES)}  # Wikipedia first
    sources = {**tars, **folders}  # an unpacked tarball before the tarball
    for place in sorted(sources, key=lambda place: (known.get(place.name, -1), place.relative_to(folder).parts)):
        source = sources[place]
        parts = place.relative_to(folder).parts
        name = parts[-1]
        if parts == (GENERAL,) or (len(parts) == 1 and name in JUNK):
            continue
        if len(parts) > 3:
            raise DataError(f"'{source}' lies too deep: a domain is `<super-domain>/<group>/<domain>` at most.")
        if len(parts) > 1 and source in tars.values() and name in NAMES:
            raise DataError(  # the folders would define its taxonomy and mix L1 with L2
                f"'{source}' is M2D2's, whose tarballs lie directly in the folder that is named: name '{place.parent}'."
            )
        if name == GENERAL:
            raise DataError(f"The domain in '{source}' is called '{GENERAL}', as general text is: choose another name.")
        if name in leaves:
            raise DataError(f"'{folder}' has two domains called '{name}': names must differ.")
        branch = branch_of(name) if len(parts) == 1 else Branch(parts[0], parts[-2], 2)
        leaves[name] = Leaf(
            name, branch, _tarred(source, name) if source in tars.values() else _plain(source), _mark(source)
        )
    if not leaves:
        raise DataError(
            f"'{folder}' holds no domain: neither `<config>{TAR}` of M2D2, nor folders with train.txt, valid.txt and "
            "test.txt."
        )
    own = {part: folder / GENERAL / f"{part}.txt" for part in PARTS[:2]}
    general = {"path": str(own["train"]), "validation": str(own["valid"])} if own["train"].is_file() else None
    return Taxonomy(tuple(leaves.values()), general=general)


def _below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, also behind links, except hidden ones (downloads in progress)."""
    seen = set[str]()
    for place, folders, file_names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(place, name) for name in file_names if not name.startswith("."))


def _plain(folder: Path) -> dict[str, Texts]:
    for part in PARTS:
        if not (folder / f"{part}.txt").is_file():
            raise DataError(f"The domain in '{folder}' lacks '{part}.txt': it needs train.txt, valid.txt and test.txt.")

    def reader(file: Path) -> Texts:
        return lambda: lines(file.open("rb"), file)

    return {part: reader(folder / f"{part}.txt") for part in PARTS}


def _tarred(file: Path, name: str) -> dict[str, Texts]:
    """Return readers of the parts inside a tarball, which is not extracted."""

    def reader(part: str) -> Texts:
        def read() -> Iterator[str]:
            try:
                for tar, member in contents(file):
                    selected = Path(member.name).parts[-2:] == (name, f"{part}.txt")
                    # Links are skipped: they may be broken or circular.
                    if selected and member.isreg() and (text := tar.extractfile(member)):
                        yield from lines(cast(BinaryIO, text), file)
                        return
            except BROKEN as error:
                raise DataError(f"'{file}' cannot be read: {error}.") from None
            raise DataError(f"'{file}' holds no '{name}/{part}.txt'.")

        return read

    return {part: reader(part) for part in PARTS}


def _mark(source: Path) -> str:
    files = [source / f"{part}.txt" for part in PARTS] if source.is_dir() else [source]
    return hash_of(*(mark_of(file) for file in files if file.is_file()))


def mark_of(file: Path) -> str:
    """Return a value that changes with a file: its digest; for large files size and modification time."""
    facts = file.stat()
    return digest(file) if facts.st_size <= DIGEST_UP_TO else f"{facts.st_size} {facts.st_mtime_ns}"
