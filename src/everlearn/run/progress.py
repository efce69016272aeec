"""Report progress on the terminal: a bar with the time left, or plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from everlearn.wording import duration

Advance = Callable[[int], None]


@dataclass(frozen=True)
class Logged:
    """Hold the values of one logging step (`train.logging_steps`).

    Times are estimates in seconds. `loss` is the objective's loss, and `added` the sum of the methods' losses, or None
    if they add none.
    """

    domain: str
    stage: int
    stages: int
    step: int
    steps: int
    loss: float
    added: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    stage_left: float | None = None
    run_left: float | None = None

    def __str__(self) -> str:
        """Return the values in one line."""
        parts = [
            f"{self.domain} {self.stage}/{self.stages}",
            f"step {self.step:,}/{self.steps:,}",
            losses(self.loss, self.added),
            None if self.learning_rate is None else f"learning rate {self.learning_rate:.3g}",
            None if self.tokens_per_second is None else f"{self.tokens_per_second:,.0f} tokens/s",
            f"stage {_left(self.stage_left)}" if self.step < self.steps and self.stage_left is not None else None,
            None if self.run_left is None else f"run {_left(self.run_left)}",
        ]
        return "  ".join(part for part in parts if part is not None)


class Counted:
    """Add up the progress of several parts of one phase, each of which counts from 0.

    Args:
        tell: called with the number of completed steps of all parts.
    """

    def __init__(self, tell: Advance) -> None:
        self._tell, self._done = tell, 0

    def more(self, steps: int) -> None:
        """Count further steps as done."""
        self._done += steps
        self._tell(self._done)

    def part(self) -> Advance:
        """Begin a part, and return a function that takes the number of steps done in it."""
        before = self._done

        def advance(done: int) -> None:
            self._done = before + done
            self._tell(self._done)

        return advance


class Reporter:
    """Receive the progress of a run.

    This base class shows nothing, which suits libraries, tests and processes other than the first.
    """

    def say(self, text: str) -> None:
        """Print one line."""

    @contextlib.contextmanager
    def activity(self, text: str, total: int | None) -> Iterator[Advance]:
        """Show a phase of `total` steps (None if unknown); yield a function that takes the number of steps done.

        Phases may be nested.
        """
        yield lambda done: None

    def log(self, at: Logged) -> None:
        """Show a logging step, within the phase of training a domain."""

    def left(self, seconds: float | None) -> None:
        """Show the estimated seconds of the rest of the run; None if there is no estimate."""


class Terminal(Reporter):
    """Show bars with the loss and the time left; without a terminal, print a line for each phase and logging step."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._tasks: list[TaskID] = []
        self._ends: float | None = None

    def say(self, text: str) -> None:
        """Print a line above any bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def activity(self, text: str, total: int | None) -> Iterator[Advance]:
        """Show a bar with the time left, below the bars of the enclosing phases."""
        if not self.console.is_terminal:
            left = None if self._ends is None else f"run {_left(self._ends - time.monotonic())}"
            self.say("  ".join(part for part in (text, left) if part is not None))
            yield lambda done: None
            return
        progress = self._progress
        if progress is None:
            progress = self._progress = Progress(*_columns(), console=self.console, transient=True)
            progress.start()
        task = progress.add_task(text, total=total, ends=None if self._tasks else self._ends)
        self._tasks.append(task)
        try:
            yield lambda done: progress.update(task, completed=done)
        finally:
            self._tasks.remove(task)
            if self._tasks:
                progress.refresh()
                progress.remove_task(task)
            else:
                progress.stop()
                self._progress = None

    def log(self, at: Logged) -> None:
        """Show the loss and the time left beside the bar; print a line if there is no bar."""
        if self._progress is None:
            self.say(f"{datetime.datetime.now():%H:%M:%S}  {at}")
        else:
            self._progress.update(self._tasks[-1], losses=losses(at.loss, at.added))
        self.left(at.run_left)

    def left(self, seconds: float | None) -> None:
        """Show the time left beside the outermost bar, or without bars after the name of each phase."""
        self._ends = None if seconds is None else time.monotonic() + seconds
        if self._progress is not None and self._tasks:
            self._progress.update(self._tasks[0], ends=self._ends)


def _columns() -> list[ProgressColumn]:
    return [
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        _OfTheRun(table_column=Column(no_wrap=True)),
    ]


class _OfTheRun(ProgressColumn):
    """Show the last logged loss and the time left of the run, which counts down between two estimates."""

    def render(self, task: Task) -> Text:
        loss, ends = task.fields.get("losses"), task.fields.get("ends")
        parts = [] if loss is None else [loss]
        if ends is not None:
            parts.append(f"run {_left(ends - time.monotonic())}")
        return Text("  ".join(parts))


def losses(loss: float, added: float | None) -> str:
    """Return the objective's loss and, after a plus sign, the loss that the methods add."""
    return f"loss {loss:.4g}" if added is None else f"loss {loss:.4g} + {added:.3g} of methods"


def _left(seconds: float) -> str:
    """Return the time left in words, at least a second."""
    return f"~{duration(max(1.0, seconds))} left"
