"""The command line: one file per command. A user's mistake ends in one sentence and exit code 2, never in a traceback.

Nothing here imports torch before a command runs, so that ``--help`` and mistyped commands answer at once.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Annotated

import typer

from everlearn import plugins
from everlearn.cli.common import importing
from everlearn.cli.plugin_commands import listed
from everlearn.errors import GO_ON, EverlearnError, Interrupted, did_you_mean
from everlearn.version import __version__

COMMANDS = {
    "init": "Start",
    "validate": "Before a run",
    "data": "Before a run",
    "extend": "Before a run",
    "plan": "Before a run",
    "tune": "Before a run",
    "run": "Run",
    "resume": "Run",
    "learn": "Run",
    "sweep": "Run",
    "report": "Results and reference",
    "diff": "Results and reference",
    "evaluate": "Results and reference",
    "analyse": "Results and reference",
    "methods": "Results and reference",
    "inspect": "Results and reference",
    "schema": "Results and reference",
    "env": "Results and reference",
    "merge": "After a run",
    "repair": "After a run",
    "export": "Share",
}
"""Each command, in the order of the help text, with its heading."""
USER_ERROR, INTERRUPTED = 2, 130
STOPPED = "Stopped. What was saved is complete: give the same command again."
COMPLETING = "_EVERLEARN_COMPLETE"
"""Environment variable that is set when the shell asks for completions (`everlearn --install-completion`)."""
PLACES = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ETXTBSY, errno.EBUSY, errno.ENXIO, errno.ENODEV, errno.EFBIG),
    *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT),  # a damaged disk, or one of another machine
}
"""Error codes of a path that cannot be read or written."""


def application(words: Sequence[str] = (), all_options: bool = False) -> typer.Typer:
    """Create the command-line application.

    Args:
        words: the arguments of the program. Only the command that they name is loaded; without one, all are listed.
        all_options: whether to load the options of all listed commands, too.
    """
    app = typer.Typer(
        name="everlearn",
        help="Train a language model on one domain after another, and see what it learnt and what it forgot.",
        pretty_exceptions_enable=False,
        suggest_commands=False,  # our own suggestion also lists the choices if none is close
        rich_markup_mode="rich",
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        pass

    command_name = next((word for word in words if not word.startswith("-")), "")
    if command_name not in COMMANDS and command_name in plugins.names("verbs"):
        app.command(command_name)(importing(plugins.command_of(command_name)))
        return app
    for name in [command_name] if command_name in COMMANDS else COMMANDS:
        module = importlib.import_module(f"everlearn.cli.{name}")
        if hasattr(module, "application"):  # a command with subcommands
            rest = words[list(words).index(name) + 1 :] if command_name == name else None
            app.add_typer(module.application(rest, all_options), name=name, rich_help_panel=COMMANDS[name])
        else:
            app.command(name, rich_help_panel=COMMANDS[name])(importing(module.command))
    if command_name not in COMMANDS:
        for name, (heading, stand_in) in listed(COMMANDS).items():
            command = importing(plugins.command_of(name)) if all_options else stand_in
            app.command(name, rich_help_panel=heading)(command)
    return app


def _version(show_version: bool) -> None:
    if show_version:
        print(f"everlearn {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the arguments after the program's name; ``sys.argv`` by default.

    Returns:
        0; 2 for a user's mistake; 130 when interrupted. Anything unexpected keeps its traceback (exit code 1).
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments and COMPLETING not in os.environ:
        arguments = ["--help"]
    _be_quiet_on_small_machines()
    try:
        with signals_interrupt():
            code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as in `everlearn methods | head`
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _run(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    try:
        words = [_at_home(word) for word in arguments]
        code = int(
            application(words or _being_completed())(args=words, prog_name="everlearn", standalone_mode=False) or 0
        )
        for error in plugins.failures():
            print(f"Note: {error}", file=sys.stderr)
        # The parser returns this code silently for an interrupt inside a command.
        return code if code != INTERRUPTED else _fail(STOPPED, as_json, INTERRUPTED)
    except typer.TyperException as error:
        return _fail(_usage(error), as_json)
    except EverlearnError as error:
        return _fail(str(error), as_json, INTERRUPTED if isinstance(error, Interrupted) else USER_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(STOPPED, as_json, INTERRUPTED)
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = where and f" ({where})"
            return _fail(f"The disk is full{where}. Free some space, and {GO_ON}", as_json)
        if error.errno not in PLACES or not where:
            raise
        return _fail(f"'{where}' cannot be read or written: {error.strerror}. Name another place.", as_json)


def _being_completed() -> list[str]:
    """Return the words on the command line that the shell asks to complete."""
    return (os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def _at_home(word: str) -> str:
    """Expand ``~`` at the start of an argument or of an option's value, which shells do not: ``--output=~/x``."""
    option, path = re.fullmatch(r"(--[\w-]+=|-\w)?(.*)", word, re.DOTALL).groups("")  # type: ignore[union-attr]
    if not path.startswith("~"):
        return word
    from everlearn.options import home

    return f"{option}{home(path, option.rstrip('=') or path)}"


def _fail(sentence: str, as_json: bool, code: int = USER_ERROR) -> int:
    print(sentence if code == INTERRUPTED else f"Error: {sentence}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": sentence}, ensure_ascii=False))
    return code


def _usage(error: typer.TyperException) -> str:
    """Return the message of the command-line parser, with a hint for a mistyped name."""
    sentence = getattr(error, "message", str(error)) if hasattr(error, "possibilities") else error.format_message()
    sentence = sentence.strip().rstrip(".") + "."
    if sentence.startswith("No such command '"):
        near = did_you_mean(sentence.split("'")[1], [*COMMANDS, *plugins.names("verbs")])
        sentence += f" {plugins.STALE}" if plugins.is_stale() else near
    elif option := getattr(error, "option_name", None):
        context = getattr(error, "ctx", None)
        known = [name for parameter in context.command.params for name in parameter.opts] if context else []
        sentence += did_you_mean(option, [name for name in known if name.startswith("--")])
    context = getattr(error, "ctx", None)
    if sentence.startswith("Missing argument") and context and (missing := getattr(error, "param", None)):
        arguments = [each for each in context.command.params if each.param_type_name == "argument" and each.required]
        names = [each.metavar or each.name.upper() for each in arguments]
        # The path of a command with subcommands has its arguments already.
        usage = " ".join([context.command_path, *(name for name in names if name not in context.command_path.split())])
        sentence = f"{sentence.rstrip('.')}: {missing.help} Write `{usage}`."
    return f"{sentence} See `{context.command_path} --help`." if context else sentence


def _be_quiet_on_small_machines() -> None:
    """Make idle OpenMP threads sleep on machines with few cores.

    Threads that spin at barriers slow everything down as soon as anything else runs. Call it before torch is imported.
    """
    if (os.cpu_count() or 1) <= 4:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # It reports missing kernels while it is imported, which is of no interest here.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What a cluster's scheduler, `kill` and a terminal that is closed send; Windows has no SIGHUP."""


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` inside the block for each of :data:`SIGNALS`, before large imports too.

    Signals that are ignored (`nohup`) or that the embedding program handles are left alone. While a run trains,
    :class:`everlearn.run.interruption.Interruption` takes over, which finishes the step and saves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # in a forked worker, whose parent handles the signal
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt

    taken = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


__all__ = ["application", "main"]
