"""``everlearn validate``: make all checks with which a run begins, and list the files that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everlearn.config.recipe import Recipe, load
from everlearn.data.file_listing import FileGroup, files_of
from everlearn.errors import DataError
from everlearn.learner import ContinualLearner
from everlearn.run.checks import Check, attempt, checks
from everlearn.wording import count


def preflight(path: Path | str, overrides: Iterable[str] = ()) -> list[Check]:
    """Make every check on a recipe file with ``key=value`` overrides; those that depend on a failed one are skipped."""
    found: list[Recipe] = []

    def read() -> str:
        found.append(load(path, overrides))
        methods = " + ".join(method.title for method in found[0].methods())
        return f"{count(len(found[0].domains), 'domain')}, {count(len(found[0].end_tasks), 'end task')}, {methods}"

    first = attempt("recipe", read)
    return [first, *(checks(ContinualLearner(found[0])) if found else ())]


def corpus_files(path: Path | str, overrides: Iterable[str] = ()) -> dict[str, list[FileGroup]]:
    """Return the files of every corpus of a valid recipe by its name; none where a check says what is wrong."""
    recipe, found = load(path, overrides), {}
    for corpus in (*recipe.domains, *([recipe.general] if recipe.general is not None else [])):
        for part in corpus.parts:
            try:
                found[part.name] = files_of(part)
            except DataError:
                found[part.name] = []
    return found
