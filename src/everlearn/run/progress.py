"""Progress for people: a bar with the time left; plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int], None]


class Reporter:
    """Says what is going on. The base says nothing: right for libraries, tests and processes other than the first."""

    def say(self, text: str) -> None:
        """One line that stays."""

    @contextlib.contextmanager
    def activity(self, text: str, total: int) -> Iterator[Advance]:
        """Something that takes `total` steps; the yielded function is told how many are done."""
        yield lambda done: None


class Terminal(Reporter):
    """Bars with time left on a terminal; a line at the start of each activity elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        """Print a line above any bar."""
        self.console.print(text, markup=False, highlight=False)

    @contextlib.contextmanager
    def activity(self, text: str, total: int) -> Iterator[Advance]:
        """Show a bar with the time left."""
        if not self.console.is_terminal:
            self.say(text)
            yield lambda done: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(text, total=total)
            yield lambda done: progress.update(task, completed=done)
