"""The suites that a grid can be run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from everlearn.benchmarking.settings import Settings
from everlearn.config.recipe import Recipe
from everlearn.errors import RecipeError, did_you_mean
from everlearn.suites import six_domains


@dataclass(frozen=True)
class Published:
    """Numbers that others published.

    Attributes:
        title: whose.
        columns: what each number is, as the source says.
        rows: entry → numbers in percent; None where the source has none.
        caption: where they were read, and what is doubtful.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    caption: str


class Suite(Protocol):
    """A stream of domains with end tasks, in numbered orders."""

    @property
    def name(self) -> str:
        """The word for it."""

    @property
    def orders(self) -> Mapping[int, Sequence[str]]:
        """Numbered orders of the same domains."""

    @property
    def published(self) -> Published | None:
        """What others measured on it."""

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        settings: Settings,
        data: Path | None,
        method: dict[str, Any],
        seed: int,
        name: str,
        folder: Path,
    ) -> Recipe:
        """A run; `order` may also name some of the domains. End tasks are wanted after the task's own domain."""


class SixDomains:
    """The benchmark of DAS (arXiv 2302.03241)."""

    name = "six-domains"
    orders = six_domains.ORDERS
    published = Published(
        "DAS, ICLR 2023 (second hand)",
        ("first", "second", "forgetting, first", "forgetting, second"),
        {
            "none": (77.25, None, None, None),
            "pool": (80.63, 90.83, None, None),
            "sequential": (80.70, 76.66, 1.14, 1.05),
            "demix": (74.70, None, 0.15, None),
            "ewc": (74.84, None, 0.02, -0.01),
            "derpp": (75.51, None, 2.36, 1.53),
            "das": (81.91, 77.93, -1.09, -0.60),
        },
        "Published averages in percent, copied from a note in a public survey repository, since the paper's own table "
        "could not be read: not verified. The note calls the columns macro-F1 and accuracy, but they look swapped "
        "(macro-F1 above accuracy on unbalanced tasks), and the rows of the base model and of Pool look mixed up. "
        "RoBERTa-base, other corpora and budgets: nothing here is a comparison of the same experiment.",
    )

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        settings: Settings,
        data: Path | None,
        method: dict[str, Any],
        seed: int,
        name: str,
        folder: Path,
    ) -> Recipe:
        """A run over the six domains."""
        given = settings.given()
        tasks = six_domains.EndTasks(**given.pop("end_tasks").given())
        given.pop("methods")
        if "model" not in given:
            raise RecipeError("The grid needs a base model: `--model`, or `model` in the settings.")
        return six_domains.recipe(
            order, data, method=method, end_tasks=tasks, seed=seed, name=name, folder=folder, **given
        )


SUITES: dict[str, Suite] = {"six-domains": SixDomains()}


def find_suite(name: str) -> Suite:
    """A suite by its name.

    Raises:
        RecipeError: there is none of this name.
    """
    if name not in SUITES:
        raise RecipeError(f"There is no suite '{name}' to run a grid on.{did_you_mean(name, SUITES)}")
    return SUITES[name]
