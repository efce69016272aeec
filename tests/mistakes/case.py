"""A case of the table, and the usual ways to spoil a project."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_project import Outcome, Project, Spoil, write_jsonl


def nothing(project: Project) -> None:
    """Leave the project as it is: the mistake is in the command."""


@dataclass(frozen=True)
class Case:
    """One mistake and what must come of it; see the package's docstring."""

    name: str
    spoil: Spoil = nothing
    command: tuple[str, ...] = ("run", "recipe.yaml")
    says: tuple[str, ...] = ()
    code: int = 2
    works: str = ""
    check: Callable[[Project, Outcome], object] | None = None
    writes: tuple[str, ...] = ()


class Places(Project):
    """A project inside a home folder of its own, in which mistakes are made.

    Attributes:
        home: the home folder; the project is `~/work`.
        finished: a finished run of the project's recipe.
        patches: what a case replaces in the program, until its end.
        base: the recipe before it was spoilt; the page shows what differs from it.
    """

    def __init__(
        self,
        home: Path,
        models: Path,
        capfd: pytest.CaptureFixture[str],
        finished: Callable[[], Path],
        patches: pytest.MonkeyPatch,
    ) -> None:
        (home / "work").mkdir(parents=True)
        super().__init__(home / "work", models, capfd)
        self.home, self.finished, self.patches = home, finished, patches
        self.raw: bytes | None = None
        self.finished_folder: Path | None = None
        self.base = copy.deepcopy(self.recipe)

    def write(self) -> None:
        """Write the recipe, or what a case has put in its place."""
        if self.raw is None:
            super().write()
        elif self.raw:
            (self.folder / "recipe.yaml").write_bytes(self.raw)


def recipe(key: str, value: Any) -> Spoil:
    """Set a dotted key of the recipe: ``recipe("train.max_steps", 0)``, ``recipe("domains.0.name", "a b")``."""

    def spoil(project: Project) -> None:
        at: Any = project.recipe
        *parents, last = key.split(".")
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        at[int(last) if isinstance(at, list) else last] = value

    return spoil


def without(key: str) -> Spoil:
    """Remove a dotted key of the recipe."""

    def spoil(project: Project) -> None:
        at: Any = project.recipe
        *parents, last = key.split(".")
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        del at[last]

    return spoil


def domain(number: int = 0, **changes: Any) -> Spoil:
    """Change keys of a domain, the first when left out."""
    return lambda project: project.recipe["domains"][number].update(changes)


def general(**changes: Any) -> Spoil:
    """Add a general corpus."""
    return lambda project: project.recipe.update(general={"path": "general.jsonl", "validation": 0.2, **changes})


def group(key: str, **changes: Any) -> Spoil:
    """Change keys of a group: ``group("train", max_steps=0)``."""
    return lambda project: project.recipe.setdefault(key, {}).update(changes)


def file(name: str, content: bytes | str) -> Spoil:
    """Write a file of the project."""
    raw = content.encode() if isinstance(content, str) else content

    def spoil(project: Project) -> None:
        (project.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (project.folder / name).write_bytes(raw)

    return spoil


def corpus(content: bytes | str) -> Spoil:
    """Write the first domain's corpus, `a.jsonl`."""
    return file("a.jsonl", content)


def jsonl(name: str, rows: list[dict[str, Any]]) -> Spoil:
    """Write rows to a file of the project."""
    return lambda project: write_jsonl(project.folder / name, rows)


def text(change: Callable[[str], str | bytes]) -> Spoil:
    """Change the text of recipe.yaml: ``text(lambda old: old + "train: {}\\n")``; empty text writes no file."""

    def spoil(project: Places) -> None:
        made = change(yaml.safe_dump(project.recipe, sort_keys=False))
        project.raw = made.encode() if isinstance(made, str) else made

    return spoil


def run(project: Places) -> None:
    """A finished run of the project's recipe in `runs/first`."""
    made = project.finished()
    project.finished_folder = made.parents[1]
    shutil.copytree(made, project.run_folder)
    project.recipe = yaml.safe_load((project.run_folder / "recipe.yaml").read_text(encoding="utf-8"))
    project.base = copy.deepcopy(project.recipe)


def patch(target: str, value: Any) -> Spoil:
    """Replace something in the program, by its dotted name, as ``monkeypatch.setattr`` does."""
    return lambda project: project.patches.setattr(target, value)


def both(*spoils: Spoil) -> Spoil:
    """Several, one after another."""

    def spoil(project: Project) -> None:
        for each in spoils:
            each(project)

    return spoil


def sentence(outcome: Outcome, case: Case) -> str:
    """What the user reads: the error, the warning, or what happens."""
    lines = outcome.err.splitlines()
    errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    if errors:
        return errors[-1]
    if outcome.code == 2 and outcome.out.startswith("{"):
        return next(check["detail"] for check in json.loads(outcome.out)["checks"] if check["ok"] is False)
    if case.says:
        both = [*lines, *outcome.out.splitlines()]
        return next((line.strip() for line in both if case.says[0] in line), "")
    return case.works


def subjects() -> dict[str, list[Case]]:
    """Every subject's heading and cases, by the name of its file."""
    from mistakes import cases

    found = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(cases.__path__)):
        module = importlib.import_module(f"mistakes.cases.{name}")
        found[(module.__doc__ or name).splitlines()[0].rstrip(".")] = list(module.CASES)
    return found
