"""Columns of blocks in the files of a cache folder, memory-mapped when they are read."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from everlearn.data.blocks import Column, Ragged
from everlearn.errors import DataError

OPEN_FILES = 64
"""Number of files that this process keeps mapped for all corpora together: a mapping holds a file descriptor, of which
a process may have as few as 256."""
VALUES, OFFSETS = ".values", ".offsets"


class StoredColumns(Mapping[str, Column]):
    """The columns of one part of a corpus: ``<part>.<key>.npy``, or ``….values.npy`` and ``….offsets.npy``.

    Each access returns an array of a mapped file; the files that were not read for longest are closed.

    Args:
        folder: the cache folder.
        part: `train` or `validation`.
    """

    def __init__(self, folder: Path, part: str) -> None:
        files = {path.name.removesuffix(".npy").removeprefix(f"{part}."): path for path in folder.glob(f"{part}.*.npy")}
        self._offsets = {key.removesuffix(OFFSETS): np.load(files[key]) for key in files if key.endswith(OFFSETS)}
        self._files = {key.removesuffix(VALUES): files[key] for key in sorted(files) if not key.endswith(OFFSETS)}
        # A damaged folder is written again under the same name, so a name does not identify the content.
        self._versions = {key: path.stat().st_mtime_ns for key, path in self._files.items()}

    def __getitem__(self, key: str) -> Column:
        """Return a column.

        Raises:
            DataError: its file was removed since the corpus was opened.
        """
        values = _mapped(str(self._files[key]), self._versions[key])
        return Ragged(values, self._offsets[key]) if key in self._offsets else values

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@functools.lru_cache(maxsize=OPEN_FILES)
def _mapped(path: str, version: int) -> np.ndarray:
    try:
        return np.asanyarray(np.load(path, mmap_mode="r"))
    except FileNotFoundError:
        raise DataError(
            f"{path} was removed while it was in use. Start the command again, and the text is tokenised anew."
        ) from None
