"""What `everlearn validate` shows: how every check ends that a run would begin with, so that one look finds all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from everlearn.config.recipe import Recipe, load
from everlearn.learner import ContinualLearner
from everlearn.run.checks import Check, attempt, checks
from everlearn.run.progress import Reporter
from everlearn.wording import count


def preflight(path: Path | str, overrides: Iterable[str] = (), reporter: Reporter | None = None) -> list[Check]:
    """Run every check on a recipe file; checks that depend on a failed one are marked as not reached.

    Args:
        path: the recipe.
        overrides: ``key=value`` texts.
        reporter: receives progress messages.
    """
    found: list[Recipe] = []

    def read() -> str:
        found.append(load(path, overrides))
        methods = " + ".join(method.title for method in found[0].methods())
        return f"{count(len(found[0].domains), 'domain')}, {count(len(found[0].end_tasks), 'end task')}, {methods}"

    first = attempt("recipe", read)
    return [first, *(checks(ContinualLearner(found[0], reporter=reporter)) if found else ())]
