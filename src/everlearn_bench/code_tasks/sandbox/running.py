"""Run programs in the sandbox and collect their verdicts; this side of the sandbox is trusted."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from everlearn_bench.code_tasks.sandbox.calls import SandboxError

_INSIDE = Path(__file__).with_name("inside.py")
_PATIENCE = 10
"""A program that waits instead of computing is killed after this many times its limit of seconds."""
_MOST_READ = 4096


class Verdict(IntEnum):
    """How a program ended: by its own verdict, or by a limit.

    A program has passed if it reports a secret number that is read from a pipe only after its last statement. So a
    program cannot pass by printing a verdict or by ending early. But one that is made to cheat can: it may read the
    pipes that it inherits, or find the number in Python's frames ("Cheating" in ``docs/evaluation.md``).
    """

    PASSED = 0
    WRONG = 1
    """An assertion failed."""
    ERROR = 2
    """Any other exception, or a crash."""
    NO_PROGRAM = 3
    """It is not valid Python."""
    TIME = 4
    """It exceeded its time limit."""
    MEMORY = 5
    """It exceeded its memory limit."""
    LEFT = 6
    """It exited before its last statement."""


@dataclass(frozen=True)
class Allowance:
    """Resource limits of a program. It can neither write files nor start processes or threads.

    Attributes:
        seconds: limit of computing time; a waiting program is ended after ten times as long.
        megabytes: limit of memory (address space), including about 60 of the interpreter.
    """

    seconds: int = 3
    megabytes: int = 512


ALLOWANCE = Allowance()


def run_programs(
    programs: Sequence[str], limits: Allowance = ALLOWANCE, progress: Callable[[int], None] | None = None
) -> list[Verdict]:
    """Run Python programs in parallel, each in its own isolated process.

    Args:
        programs: source texts; one has passed when it was executed to its end.
        limits: limits of each program.
        progress: called with the number of completed programs.

    Raises:
        SandboxError: the system cannot isolate a process; nothing was run.
    """
    check_available()
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for verdict in workers.map(functools.partial(_run, limits=limits), programs):
            verdicts.append(verdict)
            if progress is not None:
                progress(len(verdicts))
    return verdicts


@functools.cache
def check_available() -> None:
    """Check once whether this system can isolate a process.

    Raises:
        SandboxError: it cannot; the message names what is missing.
    """
    if sys.platform != "linux":
        raise SandboxError(
            f"Programs that a model writes are run on Linux only, where a process can be locked in (this is "
            f"{sys.platform}). Set `run_code: false` to leave them out."
        )
    if _run("pass", ALLOWANCE) is not Verdict.PASSED or _run(f"open({__file__!r})", ALLOWANCE) is Verdict.PASSED:
        raise SandboxError(
            "The sandbox for programs that a model writes does not hold on this system. Set `run_code: false` to leave "
            "them out."
        )


def _run(program: str, limits: Allowance) -> Verdict:
    from everlearn_bench.code_tasks.sandbox.calls import machine_filter  # reads constants that only Linux has

    secret = secrets.token_hex(16).encode()
    with contextlib.ExitStack() as stack:
        request = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
        empty = stack.enter_context(tempfile.TemporaryDirectory(prefix="everlearn-program-"))
        token, token_in = _pipe(stack)
        verdict, verdict_in = _pipe(stack)
        refusal, refusal_in = _pipe(stack)
        os.write(token_in, secret)
        json.dump(
            {
                # A lone surrogate is no UTF-8, and no program either.
                "program": program.encode("utf-8", "replace").decode(),
                "filter": machine_filter().hex(),
                "memory": limits.megabytes << 20,
                "seconds": limits.seconds,
                "token": token,
                "verdict": verdict_in,
                "refusal": refusal_in,
            },
            request,
        )
        request.seek(0)
        own = {key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", str(_INSIDE)],
            stdin=request,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(token, verdict_in, refusal_in),
            cwd=empty,
            env={"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **own},  # verdicts must not depend on chance
            start_new_session=True,
        )
        try:
            code = process.wait(_PATIENCE * limits.seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if refused := _read(refusal):
            raise SandboxError(
                f"Programs that a model writes cannot be run here: {refused.decode(errors='replace')}. Run it on a "
                "Linux with Landlock (5.13 or later) and seccomp, or set `run_code: false` to leave them out."
            )
        return _verdict(code, _read(verdict), secret)


def _read(pipe: int) -> bytes:
    """Read the available bytes of a pipe, without waiting."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, _MOST_READ)
    return b""


def _verdict(code: int | None, report: bytes, secret: bytes) -> Verdict:
    if code == 0 and secrets.compare_digest(report, secret):
        return Verdict.PASSED
    if code is None or code in (-signal.SIGKILL, -signal.SIGXCPU):
        return Verdict.TIME
    for name, verdict in _SAID.items():
        if code == 1 and name in report.split():
            return verdict
    return Verdict.LEFT if code >= 0 else Verdict.ERROR


_SAID = {
    b"SyntaxError": Verdict.NO_PROGRAM,
    b"AssertionError": Verdict.WRONG,
    b"MemoryError": Verdict.MEMORY,
    b"Exception": Verdict.ERROR,
}


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends
