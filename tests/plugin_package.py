"""The example package of the guides, installed by pip, and packages that are wrong; and commands that find them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import prepared as processes

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "everlearn-example"
CALLS = """
import contextlib, io, json, sys
from everlearn.cli import main

done = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(words)
    done.append((code, out.getvalue(), err.getvalue()))
print("DONE" + json.dumps([done, sorted(sys.modules)]))
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str


def files_of_example() -> dict[str, str]:
    """Return path → content of each file of the example package, as Git would have them."""
    files = (path for path in sorted(EXAMPLE.rglob("*")) if path.suffix in (".py", ".toml", ".yaml", ".md"))
    files = (path for path in files if not any(part in ("build",) or part.endswith(".egg-info") for part in path.parts))
    return {path.relative_to(EXAMPLE).as_posix(): path.read_text(encoding="utf-8") for path in files}


def shown_in_guides() -> dict[str, str]:
    """Return path → content of each file of the example package that a guide shows."""
    block = re.compile(r"^`examples/everlearn-example/([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return {
        file: content
        for page in sorted((ROOT / "docs").glob("*.md"))
        for file, content in block.findall(page.read_text(encoding="utf-8"))
    }


def install(source: Path, target: Path, files: dict[str, str]) -> Path:
    """Write a package and let pip install it into a folder, which is returned; nothing is downloaded."""
    _write(source, files)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", target, source], check=True, capture_output=True)
    return target


def place(target: Path, name: str, group: str, entries: dict[str, str], modules: dict[str, str]) -> Path:
    """Write a small package of modules without a folder as pip leaves it, without asking pip; return where.

    Args:
        target: the folder.
        name: of the package.
        group: of its entry points, after `everlearn.`.
        entries: entry point → module or object.
        modules: module → its text.
    """
    files = {f"{module}.py": text for module, text in modules.items()}
    about = f"{name.replace('-', '_')}-1.2.dist-info"
    files[f"{about}/METADATA"] = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.2\n"
    files[f"{about}/entry_points.txt"] = f"[everlearn.{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{about}/RECORD"])
    _write(target, files)
    return target


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def called(
    folder: Path, site: Path | None, *commands: Sequence[str], prepared: bool = True
) -> tuple[list[Said], Iterable[str]]:
    """Call `everlearn` in a process of its own; return what each command said, and the modules that were loaded.

    Args:
        folder: where it is called.
        site: where packages are installed beside those of the tests; None: no others.
        commands: the words of each.
        prepared: in a process that has the libraries; False: in one that has imported nothing.
    """
    words = json.dumps(list(map(list, commands)))
    if prepared:
        done = processes.run(CALLS, words, cwd=folder, paths=(site,) if site else ())
    else:
        path = os.pathsep.join([*([str(site)] if site else []), str(ROOT / "src")])
        done = subprocess.run(
            [sys.executable, "-c", CALLS, words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    said, modules = json.loads(done.stdout.rpartition("DONE")[2])
    return [Said(*each) for each in said], modules
