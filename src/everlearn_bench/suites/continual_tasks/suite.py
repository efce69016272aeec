"""The suites `standard-cl` and `long-sequence` for recipes, grids and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everlearn.errors import RecipeError
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.continual_tasks import address, streams
from everlearn_bench.suites.continual_tasks.claims import LONG_CLAIMS, STANDARD_CLAIMS
from everlearn_bench.suites.continual_tasks.published import published
from everlearn_bench.suites.continual_tasks.sources import BY_HAND, sources
from everlearn_bench.suites.continual_tasks.systems import GROUPS, LONG_SYSTEMS, PAPER_NAMES, SYSTEMS
from everlearn_bench.suites.settings import PROGRAMS, STREAM, Settings


class ContinualTasks(Suite):
    """Base class of both suites: classification tasks as text to text."""

    groups = GROUPS
    paper_names = PAPER_NAMES
    systems = SYSTEMS
    metrics = ("accuracy",)
    lacks = (*PROGRAMS, *STREAM, "corpora", "end_tasks.settings", "end_tasks.aspect")
    by_hand = BY_HAND
    cache = "continual-tasks"

    def locate(self, inside: str) -> Path:
        """Return the file of prompts and answers of a task."""
        return address.locate(inside, self.name, self.tasks)

    def check(self, settings: Settings) -> None:
        """Refuse settings without meaning, tuning options without fine-tuning, and prompt options without prompts."""
        super().check(settings)
        if settings.model is None:
            raise RecipeError("The grid needs a base model: `--model`, or `model` in the settings.")
        ends = settings.end_tasks
        if ends.answers == "head" and settings.prompts.cut is not None:
            raise RecipeError(
                f"`prompts.cut` is '{settings.prompts.cut}' in the settings, but with `end_tasks.answers: head` texts "
                "are cut as every classifier's are. Remove it."
            )
        tuned = [key for key in streams.TUNING if getattr(ends, key) is not None]
        if tuned and ends.answers != "head":
            raise RecipeError(
                f"`end_tasks.{tuned[0]}` is set in the settings, but nothing is fine-tuned for an end task"
                + (" unless `end_tasks.answers` is 'head'." if "end_tasks.answers" not in self.lacks else ".")
            )

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
        """Return the recipe of a run over tasks."""
        self.check(settings)
        names = streams.order_of(order, self.orders, self.name)
        return streams.recipe(names, settings=settings, data=data, method=method, seed=seed, name=name, folder=folder)


@register_suite
class StandardCL(ContinualTasks):
    """Four tasks in the orders 1 to 3 of O-LoRA and MIGU."""

    name = "standard-cl"
    orders = streams.STANDARD
    tasks = {name: name for name in streams.STANDARD[1]}  # noqa: RUF012 - see Suite
    published = published(0, tuple(streams.STANDARD), name)
    claims = STANDARD_CLAIMS
    sources = sources(streams.STANDARD[1])


@register_suite
class LongSequence(ContinualTasks):
    """Fifteen tasks in the orders 4 to 6."""

    name = "long-sequence"
    orders = streams.LONG
    tasks = {name: name for name in streams.LONG[4]}  # noqa: RUF012 - see Suite
    published = published(4, tuple(streams.LONG), name)
    claims = LONG_CLAIMS
    systems = LONG_SYSTEMS
    sources = sources(streams.LONG[4])
