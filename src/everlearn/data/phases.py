"""How a loop that takes long tells people of itself, without knowing who they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Phase(Protocol):
    """Opens a phase under a name for people."""

    def __call__(self, text: str, total: int | None, /) -> AbstractContextManager[Callable[[int], None]]:
        """Open a phase under a name, with its number of steps, None where it is not known.

        Entering it gives a function that is told how many steps are done.
        """


@contextlib.contextmanager
def in_silence(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Open a phase that is not shown."""
    yield lambda done: None
