"""``everlearn validate``: make all checks with which a run begins, and list the files that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everlearn.config.recipe import Recipe, load
from everlearn.data.file_listing import FileGroup, files_of
from everlearn.errors import DataError
from everlearn.learner import ContinualLearner
from everlearn.run.checks import Check, attempt, checks, listed
from everlearn.run.progress import Reporter
from everlearn.wording import count


def preflight(path: Path | str, overrides: Iterable[str] = (), reporter: Reporter | None = None) -> list[Check]:
    """Make every check on a recipe file with ``key=value`` overrides; those that depend on a failed one are skipped.

    Args:
        path: the recipe.
        overrides: ``key=value`` each.
        reporter: told what is being done, which takes a while with a large model or much text; default: nobody.
    """
    recipes: list[Recipe] = []

    def read() -> str:
        recipes.append(load(path, overrides))
        methods = " + ".join(method.title for method in recipes[0].methods())
        return f"{count(len(recipes[0].domains), 'domain')}, {count(len(recipes[0].end_tasks), 'end task')}, {methods}"

    first = attempt("recipe", read)
    if not recipes:
        return [first]
    learner = ContinualLearner(recipes[0], reporter=reporter)
    with learner.reporter.activity("Checking recipe, model and data", len(listed(learner))) as done:
        outcomes = [first]
        for number, outcome in enumerate(checks(learner), 1):
            outcomes.append(outcome)
            done(number)
    return outcomes


def corpus_files(path: Path | str, overrides: Iterable[str] = ()) -> dict[str, list[FileGroup]]:
    """Return the files of every corpus of a valid recipe by its name; none for a corpus that fails the checks."""
    recipe, groups = load(path, overrides), {}
    for corpus in (*recipe.domains, *([recipe.general] if recipe.general is not None else [])):
        for part in corpus.parts:
            try:
                groups[part.name] = files_of(part)
            except DataError:
                groups[part.name] = []
    return groups
