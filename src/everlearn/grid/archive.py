"""Keep the cells of a grid in one archive file, beside JSON files of cells that were made since.

A line of the archive (``cells.jsonl.bz2``) is ``{"name": …, "cell": …}``. The lines are sorted and a bzip2 file
contains no times, so the same cells give the same bytes everywhere. ``bzcat`` shows the content.
"""

from __future__ import annotations

import bz2
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from everlearn import files

ARCHIVE = "cells.jsonl.bz2"


class KeptCell(NamedTuple):
    """The content of a cell's file, or of its line in the archive."""

    value: Any
    """The JSON value."""
    where: str
    """Its place for messages: the file, or the name and the archive."""


def find_cell(folder: Path, name: str) -> KeptCell | None:
    """Return a cell by its name; a file takes precedence over a line of the archive.

    Raises:
        RunError: the file or the archive is damaged.
    """
    path = folder / f"{name}.json"
    if path.is_file():
        return KeptCell(files.read_json(path), str(path))
    line = _archived(folder).get(name)
    return None if line is None else _parsed(folder, name, line)


def find_cells(folder: Path) -> dict[str, KeptCell]:
    """Return every cell in a folder by its name, sorted by file name.

    Raises:
        RunError: a file or the archive is damaged.
    """
    cells = {}
    for path in folder.glob("*.json"):
        if path.is_file():  # else another process has just packed it
            cells[path.stem] = KeptCell(files.read_json(path), str(path))
    for name, line in _archived(folder).items():
        if name not in cells:
            cells[name] = _parsed(folder, name, line)
    return {name: cells[name] for name in sorted(cells, key=_file_name)}


def pack(folder: Path) -> int:
    """Move every cell of a folder into its archive.

    A kill at any moment leaves every cell in at least one place.

    Returns:
        Number of cells in the archive.

    Raises:
        RunError: a file or the archive is damaged.
    """
    loose = {path: path.read_bytes() for path in sorted(folder.glob("*.json"))}
    cells = {name: cell.value for name, cell in find_cells(folder).items()}
    if loose:
        lines = [json.dumps({"name": name, "cell": cells[name]}, **_COMPACT) + "\n" for name in cells]
        files.write_bytes(folder / ARCHIVE, bz2.compress("".join(lines).encode()))
    for path, content in loose.items():
        if path.read_bytes() == content:  # otherwise it was made again meanwhile
            path.unlink()
    return len(cells)


def unpack(folder: Path) -> int:
    """Write every cell of a folder's archive to a file of its own, and remove the archive.

    Returns:
        Number of cells in the folder.

    Raises:
        RunError: a file or the archive is damaged.
    """
    cells = find_cells(folder)
    for name, cell in cells.items():
        files.write_json(folder / _file_name(name), cell.value)
    (folder / ARCHIVE).unlink(missing_ok=True)
    return len(cells)


_COMPACT: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}


def _file_name(name: str) -> str:
    return f"{name}.json"


def _archived(folder: Path) -> Mapping[str, bytes]:
    """Return the lines of a folder's archive by the names of their cells; empty if there is no archive."""
    path = folder / ARCHIVE
    try:
        state = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return _lines(path, state.st_mtime_ns, state.st_size, state.st_ino)


@functools.lru_cache(maxsize=64)
def _lines(path: Path, *version: int) -> Mapping[str, bytes]:
    """Read an archive; the result is cached until the file changes."""
    with files.reading(path):
        lines = bz2.decompress(path.read_bytes()).splitlines()
        cells = [json.loads(line) for line in lines]
        if not all(isinstance(cell, dict) and {"name", "cell"} <= cell.keys() for cell in cells):
            raise ValueError("a line is no named cell")
        return {str(cell["name"]): line for cell, line in zip(cells, lines, strict=True)}


def _parsed(folder: Path, name: str, line: bytes) -> KeptCell:
    return KeptCell(json.loads(line)["cell"], f"{name} in {folder / ARCHIVE}")
