"""Run a program in its own process: drop every privilege, run the program, and report how it ended.

This file is run as a script by an interpreter without site-packages, so it imports only the standard library. It reads
JSON from its standard input: ``program``, ``filter`` (hex), ``memory`` and ``seconds`` (limits), ``token``, ``verdict``
and ``refusal`` (numbers of open pipes).
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import struct
import sys
import types
from collections.abc import Iterator

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Version of Landlock → how many rights over files it knows; 16 from the fifth."""
_OF_OTHERS = ("site-packages", "dist-packages")
_LONGEST = 200
_AHEAD = ("binascii", "decimal", "hashlib", "zlib")
"""Modules that may need a system library, which cannot be opened once access to files is restricted."""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result


def _libraries() -> Iterator[tuple[str, int]]:
    """Yield each path that may be read, with its rights.

    The modules of the standard library may be read, and their folders and the empty working folder may be listed.
    The right to list a folder covers its subfolders. So the folder of the standard library gets none, since it contains
    other installed packages.
    """
    yield ".", _READ_FOLDER
    for folder in filter(os.path.isdir, sys.path):
        for entry in os.scandir(folder):
            if entry.name not in _OF_OTHERS:
                yield entry.path, _READ_FILE | (_READ_FOLDER if entry.is_dir() else 0)


def _remember_names() -> None:
    """Cache the module names in Python's folders, and keep imports from listing these folders again."""
    importlib.util.find_spec("no_such_module")  # every finder lists its folder
    for finder in sys.path_importer_cache.values():
        if finder is not None:
            finder._fill_cache = lambda: None  # type: ignore[attr-defined]


def _close_files() -> None:
    """Restrict file access irrevocably to the paths of :func:`_libraries`, with Landlock."""
    version = _checked(_libc.syscall(_CREATE_RULESET, None, 0, 1), "Landlock is off or unknown to the kernel")
    rights = struct.pack("=Q", (1 << _RIGHTS.get(version, 16)) - 1)
    rules = _checked(_libc.syscall(_CREATE_RULESET, rights, len(rights), 0), "Landlock")
    for path, allowed in _libraries():
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed, opened)
        _checked(_libc.syscall(_ADD_RULE, rules, 1, rule, 0), "Landlock")
        os.close(opened)
    _checked(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    _checked(_libc.syscall(_RESTRICT_SELF, rules, 0), "Landlock")
    os.close(rules)


def _close_calls(steps: bytes) -> None:
    """Restrict system calls irrevocably to those that the filter allows, with seccomp."""
    array = ctypes.create_string_buffer(steps, len(steps))
    program = struct.pack("HxxxxxxP", len(steps) // 8, ctypes.addressof(array))
    _checked(_libc.prctl(_SECCOMP, _FILTER, program, 0, 0), "seccomp filters are off or unknown to the kernel")


def _limit(limits: dict[str, int]) -> None:
    for what, most in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_CPU, limits["seconds"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def _run(program: str) -> None:
    module = types.ModuleType("program")
    sys.modules["program"] = module  # where data classes look for their own
    sys.argv = ["program"]
    exec(compile(program, "<program>", "exec"), module.__dict__)


def main() -> None:
    """Drop privileges, run the program, and report the outcome."""
    request = json.load(sys.stdin)
    token, verdict, program = request["token"], request["verdict"], request["program"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    for name in _AHEAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    try:
        _limit(request)
        _remember_names()
        _close_files()
        _close_calls(bytes.fromhex(request["filter"]))
    except (OSError, ValueError) as error:
        os.write(request["refusal"], str(error).encode())
        os._exit(1)
    os.close(request["refusal"])  # no program can have written it, or can open it later
    del request
    try:
        _run(program)
    except BaseException as error:
        names = [kind.__name__ for kind in type(error).__mro__[:-1]]
        os.write(verdict, " ".join(names)[:_LONGEST].encode("utf-8", "replace"))
        os._exit(1)
    # Only who has come this far reads the token: before, it is in no variable of this process.
    os.write(verdict, os.read(token, 64))
    os._exit(0)


if __name__ == "__main__":
    main()
