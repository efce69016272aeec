"""``everlearn validate``: make all checks with which a run begins, and report the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everlearn.config.recipe import Recipe, load
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
