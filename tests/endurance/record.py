"""How many cases, from which on, for how long; and what was found, as JSON."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlearn import files
from everlearn.run.environment import environment


def asked(what: str | None, count: int) -> argparse.Namespace:
    """The options of every one of these scripts."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help="how many; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--output", type=Path, help="add what was found to this JSON file")
    return parser.parse_args()


EVERY = 60
"""Seconds after which what was found is written again, so that a run that is killed loses no more."""


class Record:
    """What is done and found.

    Attributes:
        before: the records that the file has from earlier runs.
        cases: how many of each kind.
        failed: a line for each case that ended as it must not.
        more: other facts.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.started = self.saved = time.monotonic()
        written = options.output is not None and options.output.is_file()
        self.before: list[dict[str, Any]] = files.read_json(options.output) if written else []
        self.cases: Counter[str] = Counter()
        self.failed: list[str] = []
        self.more: dict[str, Any] = {}

    def numbers(self) -> Iterator[int]:
        """Yield the number of each case."""
        for number in range(self.options.seed, self.options.seed + self.options.count):
            if time.monotonic() - self.started > 60 * self.options.minutes:
                return
            yield number

    def done(self, kind: str, number: int, wrong: str = "") -> None:
        """Count a case, and print it if something is wrong with it."""
        self.cases[kind] += 1
        if wrong:
            self.failed.append(f"{kind} {number}: {wrong}")
            print(self.failed[-1], flush=True)
        if time.monotonic() - self.saved > EVERY:
            self.save()

    def found(self) -> dict[str, Any]:
        """Everything so far."""
        return {
            "seed": self.options.seed,
            "cases": dict(sorted(self.cases.items())),
            "total": self.cases.total(),
            "failed": self.failed,
            **self.more,
            "seconds": round(time.monotonic() - self.started),
            "environment": environment(),
        }

    def save(self) -> None:
        """Write everything so far after the records of earlier runs."""
        if self.options.output is not None:
            files.write_json(self.options.output, [*self.before, self.found()])
        self.saved = time.monotonic()

    def finish(self) -> int:
        """Print and write everything; the exit code."""
        found = self.found()
        for kind, count in found["cases"].items():
            print(f"{count:>8,}  {kind}")
        text = f"in {found['seconds']} s from case {self.options.seed} on; {len(self.failed)} failed"
        print(f"{found['total']:>8,}  {text}", flush=True)
        self.save()
        return int(bool(self.failed))
