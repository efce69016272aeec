"""Run the shell commands of README.md in an environment, as a new user would, and record what they print.

    python -m venv fresh
    python benchmarks/readme_commands.py fresh/bin scratch --record docs/results/readme-commands.md

The commands are those of the fenced `bash` blocks, in their order. `CHANGES` says which run shorter or otherwise, and
why; the record shows it. Corpora that a command or a recipe names are made where they are named, of documentation of
Python's standard library, and a model of the hub is replaced by one that the wheel brings, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SHORT = "train.max_steps=2 evaluation.blocks=2"
CHANGES: tuple[tuple[str, str | None, str], ...] = (
    (r"make .*", None, "needs the development environment, which this one is without"),
    (r"pip install \.(.*)", r"pip install -qq {root}\1 --constraint {root}/constraints.txt", "the tested versions"),
    (r"(everlearn (?:demo|run|learn|sweep)\b.*)", rf"\1 {SHORT}", "two steps of each domain instead of all"),
)
"""Pattern of a whole command → what runs instead (None: nothing), and why. The first that fits counts."""
STAND_INS = {"FacebookAI/roberta-base": "suite:docs/base", "block_size: 512": "block_size: 128"}
"""In commands and recipes: a model of the hub → one that the wheel brings, and the longest rows that it reads."""
NAMED = re.compile(r"\bdata/[\w./-]+\.(?:jsonl|txt)")
TEXTS = ("argparse", "asyncio", "collections", "contextlib", "csv", "datetime", "decimal", "email", "functools", "http")
TEXTS += ("inspect", "json", "logging", "pathlib", "random", "re", "socket", "statistics", "string", "unittest")
LONGEST = 12
"""Lines of one output that the record keeps, the last ones."""


class Outcome(NamedTuple):
    """A command as README has it, what became of it, and what it printed."""

    command: str
    change: str
    code: int | None
    seconds: float
    output: str


def commands(text: str) -> list[str]:
    """Return the commands of the fenced bash blocks, without comments."""
    lines = []
    for block in re.findall(r"^```(?:bash|sh|shell)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if words := shlex.split(line, comments=True):
                lines.append(shlex.join(words))
    return lines


def changed(command: str) -> tuple[str | None, str]:
    """Return what runs instead of a command, and why; the command itself and nothing where nothing is changed."""
    for pattern, instead, why in CHANGES:
        if fits := re.fullmatch(pattern, command):
            return (None if instead is None else fits.expand(instead).format(root=ROOT)), why
    return command, ""


def run_all(programs: Path, folder: Path, text: str) -> Iterator[Outcome]:
    """Run the commands one after another in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands(text):
        instead, change = changed(command)
        if instead is None:
            yield Outcome(command, f"left out: {change}", None, 0.0, "")
            continue
        for named, local in STAND_INS.items():
            instead = instead.replace(named, local)
        make_corpora(folder, instead)
        began = time.monotonic()
        done = call(programs, folder, instead)
        seconds = time.monotonic() - began
        put_stand_ins(folder)
        output = done.stdout.replace(str(folder), ".").replace(str(ROOT), "everlearn")
        yield Outcome(command, change and f"changed: {change}", done.returncode, seconds, output)


def call(programs: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run one command with the environment's programs first, without this checkout and without the hub."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    clean |= {"PATH": f"{programs.resolve()}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1", "COLUMNS": "110"}
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def put_stand_ins(folder: Path) -> None:
    """Put stand-ins into recipes that a command wrote, and make the corpora that they name."""
    for recipe in folder.glob("*.yaml"):
        text = recipe.read_text(encoding="utf-8")
        for named, local in STAND_INS.items():
            text = text.replace(named, local)
        recipe.write_text(text, encoding="utf-8")
        make_corpora(folder, text)


def make_corpora(folder: Path, text: str) -> None:
    """Make each corpus that a text names and that is not there."""
    for name in dict.fromkeys(NAMED.findall(text)):
        path = folder / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        taken = len(list(path.parent.iterdir()))
        documents = [part for module in TEXTS[taken::4] for part in documentation(module)]
        lines = documents if path.suffix == ".txt" else [json.dumps({"text": each}) for each in documents]
        path.write_text(("\n\n" if path.suffix == ".txt" else "\n").join(lines) + "\n", encoding="utf-8")


def documentation(module: str) -> list[str]:
    """Return the docstrings of a module of the standard library, one document each."""
    known = vars(__import__(module)).values()
    texts = {inspect.cleandoc(each.__doc__) for each in known if isinstance(getattr(each, "__doc__", None), str)}
    parts = {
        inspect.cleandoc(own.__doc__)
        for each in known
        if inspect.isclass(each)
        for own in vars(each).values()
        if isinstance(getattr(own, "__doc__", None), str)
    }
    return sorted(re.sub(r"\n{2,}", "\n", text) for text in texts | parts if len(text) > 120)


def record(outcomes: list[Outcome], packages: str, python: str) -> str:
    """Return the record as Markdown."""
    ended, left_out = (sum(each.code == code for each in outcomes) for code in (0, None))
    stands_in = ", ".join(f"`{local}` stands for `{named}`" for named, local in STAND_INS.items())
    parts = [
        "# The commands of README in a new environment",
        "Written by `benchmarks/readme_commands.py`: the commands of README.md, in their order, in an environment\n"
        f"that has what the package declares and nothing else ({python}). {ended} ran to their end, {left_out} were\n"
        f"left out, {len(outcomes) - ended - left_out} failed. Corpora that they name are documentation of Python's\n"
        f"standard library; {stands_in}; the hub is\noff. Seconds are of a shared machine.",
    ]
    for each in outcomes:
        status = "not run" if each.code is None else f"exit code {each.code}, {each.seconds:.0f} s"
        parts.append(f"## `{each.command}`\n\n{status}{f'; {each.change}' if each.change else ''}")
        lines = [line.rstrip() for line in each.output.splitlines() if line.strip()]
        if lines:
            shown = [*(["…"] if len(lines) > LONGEST else []), *lines[-LONGEST:]]
            parts.append("```text\n" + "\n".join(shown) + "\n```")
    parts.append("## `pip list`\n\n```text\n" + packages.strip() + "\n```")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="bin folder of the environment")
    parser.add_argument("folder", type=Path, help="a new folder to work in")
    parser.add_argument("--record", type=Path, help="file to write the record to")
    options = parser.parse_args()
    if options.folder.exists():
        parser.error(f"{options.folder} is there already; name a new folder")
    folder = options.folder.resolve()
    outcomes = []
    for outcome in run_all(options.programs, folder, README.read_text(encoding="utf-8")):
        outcomes.append(outcome)
        print(
            f"{'-' if outcome.code is None else outcome.code}  {outcome.seconds:5.0f} s  {outcome.command}", flush=True
        )
        if outcome.code:
            print(outcome.output)
    python, packages = (
        call(options.programs, folder, command).stdout
        for command in ("python --version", "python -m pip list --disable-pip-version-check")
    )
    if options.record:
        options.record.write_text(record(outcomes, packages, python.strip()), encoding="utf-8")
    return int(any(outcome.code for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
