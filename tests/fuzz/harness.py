"""What the fuzzers share: which cases to do, and how a command is judged."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Callable
from typing import NamedTuple

import pytest

from everlearn.cli import main


class Outcome(NamedTuple):
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """Of its error; empty without one."""
        return next((line for line in self.err.splitlines() if line.startswith("Error: ")), "")


def command(capfd: pytest.CaptureFixture[str], *arguments: object) -> Outcome:
    """Call `everlearn` in this process; what it does not turn into a sentence is raised."""
    capfd.readouterr()
    code = main([str(argument) for argument in arguments])
    return Outcome(code, *capfd.readouterr())


def fuzz(name: str, few: int, case: Callable[[random.Random], object]) -> None:
    """Do the cases, each with a generator of its own; fail with the list of those that fail.

    Args:
        name: of the fuzzer; seeds its cases.
        few: how many are enough when nobody asks for more (`EVERLEARN_FUZZ`).
        case: raises what is wrong.
    """
    failed = []
    asked = os.environ.get("EVERLEARN_FUZZ", str(few))
    first, colon, last = asked.partition(":")
    for number in range(int(first), int(last)) if colon else range(int(asked)):
        try:
            case(random.Random(f"{name} {number}"))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed.append(f"case {number}: {type(error).__name__}: {error} ({where.filename}, line {where.lineno})")
    assert not failed, f"{len(failed)} cases of '{name}' failed:\n" + "\n".join(failed)
