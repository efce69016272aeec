"""The suite `six-domains` for recipes, grids and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.settings import PROGRAMS, STREAM, Settings
from everlearn_bench.suites.six_domains import address, making, streams
from everlearn_bench.suites.six_domains.claims import DAS_PAPER
from everlearn_bench.suites.six_domains.published import GROUPS, PAPER_NAMES, PUBLISHED
from everlearn_bench.suites.six_domains.sources import BY_HAND, SOURCES
from everlearn_bench.suites.six_domains.tasks import TASKS, EndTasks


@register_suite
class SixDomains(Suite):
    """The benchmark of DAS (arXiv 2302.03241)."""

    name = "six-domains"
    orders = streams.ORDERS
    tasks = {name: name for name in TASKS}  # noqa: RUF012 - see Suite
    published = PUBLISHED
    claims = DAS_PAPER
    groups = GROUPS
    paper_names = PAPER_NAMES
    sources = SOURCES
    by_hand = BY_HAND
    lacks = (*PROGRAMS, *STREAM, "end_tasks.answers", "max_train", "prompts.names", "prompts.cut")

    def make(self, folder: Path, known: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]) -> list[str]:
        """Build the corpora whose sources were fetched."""
        return making.make(folder, known, say)

    def locate(self, inside: str) -> Path:
        """Return the file of a corpus or of an end task."""
        return address.locate(inside)

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        settings: Settings,
        data: Path | None,
        method: Sequence[Mapping[str, Any]],
        seed: int,
        name: str,
        folder: Path,
    ) -> dict[str, Any]:
        """Return the recipe of a run over the six domains."""
        self.check(settings)
        given = settings.given()
        tasks = EndTasks(**given.pop("end_tasks").given())
        for key in ("methods", "entries", "prompts"):
            given.pop(key)
        if "model" not in given:
            raise RecipeError("The grid needs a base model: `--model`, or `model` in the settings.")
        return streams.recipe(order, data, method=method, end_tasks=tasks, seed=seed, name=name, folder=folder, **given)
