"""How a loop that takes long tells people of itself, without knowing who they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Phase(Protocol):
    """Opens a phase under a name for people."""

    def __call__(self, text: str, total: int | None, /) -> AbstractContextManager[Callable[[int], None]]:
        """Take the name and how many steps there are, None where nobody knows; what it gives is told how many are
        done."""


@contextlib.contextmanager
def in_silence(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Open a phase that nobody is told of."""
    yield lambda done: None
