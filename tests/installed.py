"""Environments in which the wheel is tried: with what it declares, and nothing else.

Most need no download: an environment of links borrows, from the environment of the tests, exactly the distributions
that follow from `pyproject.toml`. What only the development extras bring is absent there, as it is for a user.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def canonical(name: str) -> str:
    """Return a distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: Iterable[str]) -> set[str]:
    """Return the names of all distributions that these requirements bring here; markers and extras are applied."""
    names: set[str] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonical(requirement.name)
        for own_extra in ("", *requirement.extras):
            if (name, own_extra) not in seen:
                seen.add((name, own_extra))
                names.add(name)
                waiting += [(Requirement(text), own_extra) for text in metadata.requires(name) or ()]
    return names


def link_distributions(names: Iterable[str], packages: Path) -> None:
    """Link the files of installed distributions into another site-packages.

    A folder that several distributions share (a namespace package) is made anew, and their files are linked one by one.
    """
    files = {canonical(each.metadata["Name"]): (each, each.files or ()) for each in metadata.distributions()}
    tops = {name: {_top(file) for file in of} - {None} for name, (_, of) in files.items()}
    shared = Counter(top for of in tops.values() for top in of)
    for name in sorted(names):
        distribution, own = files[name]
        for top in sorted(top for top in tops[name] if top is not None and shared[top] == 1):
            (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
        for file in own:
            top = _top(file)
            if top is not None and shared[top] > 1:
                link = packages / file
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.symlink_to(Path(str(distribution.locate_file(file))))


def _top(file: PurePosixPath) -> str | None:
    """Return the entry of site-packages that a file stands in; None for scripts, caches and path files."""
    first = file.parts[0]
    return None if first in ("..", "/", "__pycache__") or first.endswith(".pth") else first


def environment_of_links(folder: Path, wheel: Path) -> Path:
    """Make an environment with a wheel and links to what `pyproject.toml` declares; return its bin folder."""
    venv.create(folder, symlinks=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    link_distributions(closure(PROJECT["dependencies"]), packages)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-index"]
    call(*pip, "--no-deps", wheel, cwd=folder)
    return folder / "bin"


def environment_of_pip(folder: Path, wheel: Path, constraints: Iterable[str]) -> Path:
    """Make an environment in which pip installs a wheel and what it declares; return its bin folder."""
    venv.create(folder, with_pip=True)
    (folder / "constraints.txt").write_text("".join(f"{line}\n" for line in constraints))
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", folder / "constraints.txt"]
    call(*pip, wheel, cwd=folder)
    return folder / "bin"


def lowest() -> list[str]:
    """Return the lowest version of each dependency that `pyproject.toml` allows."""
    bounds = [Requirement(text) for text in PROJECT["dependencies"]]
    return [f"{each.name}=={next(part.version for part in each.specifier if part.operator == '>=')}" for each in bounds]


def pinned() -> list[str]:
    """Return the versions with which `make install` installs."""
    return (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


VERSIONS: dict[str, Callable[[], list[str]]] = {"lowest": lowest, "pinned": pinned, "newest": list}
"""Word in `EVERLEARN_VERSIONS` → what pip is held to."""


def call(*words: str | Path, cwd: Path, code: int = 0) -> str:
    """Return what a program prints, in an environment that knows nothing of this checkout."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON") and key != "VIRTUAL_ENV"}
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
