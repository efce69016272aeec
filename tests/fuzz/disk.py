"""A disk that refuses: every operation that changes something below a folder is counted, and fails from the nth on.

Python tells an audit hook of each before it happens. A hook stays for the life of the process, so there is one, which
asks the disk that is watched at the moment, if any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EVENTS = frozenset(
    {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate", "os.symlink", "os.link"}
    | {"shutil.rmtree", "shutil.copyfile"}
)


class Disk:
    """Counts what changes below a folder.

    Attributes:
        done: names of the operations so far.
        refuses: from which one on they are refused, counted from 1; None for never.
        how: what is raised then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = os.fspath(folder)
        self.done: list[str] = []
        self.refuses: int | None = None
        self.how: BaseException = KeyboardInterrupt()

    def asked(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count an operation, or refuse it."""
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _CHANGING:
                return
        else:
            path = arguments[1] if event in ("os.rename", "shutil.copyfile") else arguments[0]
        if not isinstance(path, str | bytes | os.PathLike) or not os.fsdecode(path).startswith(self.folder):
            return
        if self.refuses is not None and len(self.done) + 1 >= self.refuses:
            how = self.how
            raise OSError(how.errno, how.strerror, os.fsdecode(path)) if isinstance(how, OSError) else how
        self.done.append(f"{event} {os.path.basename(os.fsdecode(path))}")


_watched: Disk | None = None
_hooked = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and (event == "open" or event in _EVENTS):
        _watched.asked(event, arguments)


@contextmanager
def watched(folder: Path, refuses: int | None = None, how: BaseException | None = None) -> Iterator[Disk]:
    """Inside, changes below a folder are counted, and refused from the nth on."""
    global _watched, _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    disk = Disk(folder)
    disk.refuses, disk.how = refuses, how or disk.how
    _watched = disk
    try:
        yield disk
    finally:
        _watched = None
