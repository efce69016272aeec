"""What the fuzzers share: which cases to do, and how a command is judged."""

from __future__ import annotations

import json
import math
import os
import random
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from everlearn.cli import main

MOST = 200
"""How many cases the quickest fuzzers do with every test."""


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
    failed, done, began = [], 0, time.monotonic()
    for number in numbers(few):
        if time.monotonic() - began > 60 * float(os.environ.get("EVERLEARN_FUZZ_MINUTES", "inf")):
            break
        done += 1
        try:
            case(random.Random(f"{name} {number}"))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            failed.append(f"case {number}: {type(error).__name__}: {error} ({where.filename}, line {where.lineno})")
    if "EVERLEARN_FUZZ_FOUND" in os.environ:
        with Path(os.environ["EVERLEARN_FUZZ_FOUND"]).open("a", encoding="utf-8") as found:
            found.write(json.dumps([name, done, failed]) + "\n")
    assert not failed, f"{len(failed)} cases of '{name}' failed:\n" + "\n".join(failed)


def numbers(few: int) -> range:
    """The numbers of the cases to do: `FIRST:LAST`, or as many as asked for the quickest, and fewer of the others."""
    asked = os.environ.get("EVERLEARN_FUZZ", str(MOST))
    first, colon, last = asked.partition(":")
    if colon:
        return range(int(first), int(last))
    begin = int(os.environ.get("EVERLEARN_FUZZ_SEED", "0"))
    return range(begin, begin + math.ceil(few * int(asked) / MOST))
