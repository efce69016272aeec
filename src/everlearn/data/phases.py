"""Report the progress of long loops, independently of how it is displayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol


class Phase(Protocol):
    """Open a named phase of a long computation."""

    def __call__(self, text: str, total: int | None, /) -> AbstractContextManager[Callable[[int], None]]:
        """Open a phase with a name and its number of steps (None if unknown).

        Entering the context returns a function to call with the number of completed steps.
        """


@contextlib.contextmanager
def in_silence(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Open a phase that is not shown."""
    yield lambda done: None
