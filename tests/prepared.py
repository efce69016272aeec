"""Processes of their own that need not import the libraries: forks of one that has, which starts when one is asked for.

Importing torch and transformers takes five seconds of a processor, everlearn itself one. A fork has the libraries and
nothing of everlearn, so what a test asks of a new process (modules, plugins, the registries' order) is asked of it
alike. Tests of what is imported, and one of each kind that a user starts, take a real process instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
SECONDS = 600
"""After which a fork is ended by a signal: nothing waits for ever."""


class Done(subprocess.CompletedProcess[str]):
    """What a process returned and printed."""


def run(
    code: str,
    *arguments: str,
    cwd: Path | None = None,
    paths: tuple[Path, ...] = (),
) -> Done:
    """Run code in a fork, as ``python -c code arguments…`` with the tests' environment does.

    Args:
        code: the program.
        arguments: its ``sys.argv[1:]``.
        cwd: where it runs.
        paths: where it finds modules and packages before all others.
    """
    with TemporaryDirectory() as folder:
        asked = {
            "code": code,
            "argv": ["-c", *arguments],
            "cwd": str(cwd or Path.cwd()),
            "paths": [str(path) for path in paths],
            "env": dict(os.environ),
            "out": f"{folder}/out",
            "err": f"{folder}/err",
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        returned = server.stdout.readline()
        assert returned, "the process with the libraries has ended"
        out, err = (Path(asked[key]).read_text(encoding="utf-8") for key in ("out", "err"))
    return Done(["-c", *arguments], int(returned), out, err)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the process that has the libraries; it ends when its input does, at the latest with this one."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]  # the libraries may be found by it
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # this one's is a test's at the moment
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"},
    )
    assert server.stdin is not None
    atexit.register(server.wait)
    atexit.register(server.stdin.close)
    return server


def _serve() -> None:
    """Fork for each line of the input, and say what the fork returned."""
    gc.disable()
    import accelerate  # noqa: F401
    import datasets  # noqa: F401
    import peft  # noqa: F401
    import torch  # noqa: F401
    from transformers import AutoModel, Trainer  # noqa: F401

    gc.freeze()  # no fork's collections look at the libraries
    gc.enable()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _child(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _child(asked: dict[str, Any]) -> None:
    """Run what is asked for, and end as Python would."""
    signal.alarm(SECONDS)
    os.fsync = lambda file: None  # type: ignore[assignment]  # as in conftest.py
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.argv, sys.path[:0] = asked["argv"], asked["paths"]
    code = 0
    try:
        exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
