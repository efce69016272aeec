"""The system calls that a program in the sandbox may make, as a filter that the kernel runs (seccomp).

A list of what is allowed, so that what nobody thought of is refused: no network (there is no ``socket``), no process
and no thread (no ``clone``), no signal (no ``kill``), no look into other processes (no ``ptrace``), no change of a
file, of a limit or of a right. A refused call fails with EPERM.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from collections.abc import Iterator

from everlearn.errors import EverlearnError


class SandboxError(EverlearnError):
    """Programs that a model writes cannot be run safely here."""


_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine → its column in the table, and what the kernel calls it (AUDIT_ARCH)."""
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # files that are open; names
    "read": (0, 63), "pread64": (17, 67), "readv": (19, 65), "write": (1, 64), "writev": (20, 66), "close": (3, 57),
    "lseek": (8, 62), "fstat": (5, 80), "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79),
    "statx": (332, 291), "getdents64": (217, 61), "getcwd": (79, 17), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72),
    # its own memory
    "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233),
    "brk": (12, 214), "futex": (202, 98),
    # its own signals
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    # time, chance, who it is
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "sched_yield": (24, 124), "getrandom": (318, 278), "uname": (63, 160), "getpid": (39, 172), "gettid": (186, 178),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    # the end
    "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip
"""Name → number on x86_64 and on aarch64; None where there is no such call."""
_ALL = 0xFFFFFFFF
_READS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_LARGEFILE
_CHECKED: dict[str, tuple[tuple[int | None, int | None], int, int, tuple[int, ...]]] = {
    "open": ((2, None), 1, ~_READS & _ALL, (0,)),
    "openat": ((257, 56), 2, ~_READS & _ALL, (0,)),
    # F_GETFD, F_SETFD, F_GETFL. F_SETOWN with F_SETSIG would send signals to any process.
    "fcntl": ((72, 25), 1, _ALL, (1, 2, 3)),
}
"""The same, with an argument that decides: which one, what of it is looked at, and what that may be."""

_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where they are in what a filter reads (struct seccomp_data); of an argument the lower half, of which these calls
read no more."""


def machine_filter() -> bytes:
    """Return the filter for this machine: an array of ``struct sock_filter``.

    Raises:
        SandboxError: the machine's calls are not known.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES or sys.maxsize < 2**32:
        raise SandboxError(
            f"Programs that a model writes are run on {' and '.join(_ARCHITECTURES)} only: the calls of '{machine}' "
            "are not known. Set `run_code: false` to leave them out."
        )
    return b"".join(_filter(*_ARCHITECTURES[machine]))


def _filter(column: int, architecture: int) -> Iterator[bytes]:
    yield _step(_LOAD, _ARCHITECTURE)
    yield _step(_EQUAL, architecture, 1, 0)
    yield _step(_RETURN, _KILL)  # calls of another architecture have other numbers
    yield _step(_LOAD, _NUMBER)
    for numbers in _CALLS.values():
        if (number := numbers[column]) is not None:
            yield _step(_EQUAL, number, 0, 1)
            yield _step(_RETURN, _ALLOW)
    for numbers, argument, looked_at, may_be in _CHECKED.values():
        if (number := numbers[column]) is not None:
            yield _step(_EQUAL, number, 0, len(may_be) + 4)
            yield _step(_LOAD, _ARGUMENTS + 8 * argument)
            yield _step(_AND, looked_at)
            for left in range(len(may_be), 0, -1):
                yield _step(_EQUAL, may_be[-left], left, 0)
            yield _step(_RETURN, _REFUSE)
            yield _step(_RETURN, _ALLOW)
    yield _step(_RETURN, _REFUSE)


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
