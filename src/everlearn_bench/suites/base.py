"""The base class of a suite: a stream of domains, with the numbers that others published and claim for it."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from everlearn.config.addresses import SUITES, suite
from everlearn.config.objective import check_objective
from everlearn.config.reading import read_yaml
from everlearn.errors import RecipeError, did_you_mean
from everlearn.evaluation.task import CONFIGS, kind_of
from everlearn.grid.equal_compute import steps_of
from everlearn.grid.template import GridTemplate
from everlearn.options import Options
from everlearn_bench.suites.claims import Claims
from everlearn_bench.suites.overlay import Overlay, lay_over, typed
from everlearn_bench.suites.sources import Fetchable
from everlearn_bench.suites.template import expanded, with_addresses, with_samples, with_shares


@dataclass(frozen=True)
class Published:
    """Published numbers.

    Attributes:
        title: the name of the publication.
        columns: meaning of each number, as in the source.
        rows: row → numbers in percent; None if the source has none.
        caption: their source, and doubts about them.
        beside: the measured number that the tables show beside them: one of :mod:`everlearn.grid.numbers`, and its
            order (None: the mean over all). Averages and forgetting of the metrics of the suite if empty.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    caption: str
    beside: tuple[tuple[str, int | None], ...] = ()


class Suite(GridTemplate):
    """Base class of suites. Subclass, set the attributes, implement `locate`, use ``@register_suite``.

    A suite is a template, a recipe in YAML without ``method`` and ``run`` (:mod:`everlearn_bench.suites.template` has
    its further forms), and the orders of its domains. What a user gives, ``everlearn bench NAME key=value --settings
    FILE``, is a part of a recipe that is laid over it (:mod:`everlearn_bench.suites.overlay`). The registered object
    knows none of this; :meth:`on` returns the suite that does.

    Attributes (beside those of a template):
        name: name in paths of recipes (``suite:NAME/…``) and on the command line of ``everlearn bench``.
        orders: numbered orders of the domains; the order of the template alone if it is not set.
        recipe_file: the template, in the folder of the class or of a base class.
        published: published numbers.
        claims: claims of a paper about measurements on this suite.
        sources: files that ``--data fetch`` downloads.
        by_hand: instructions for getting data that cannot be fetched.
        cache: name of its folder in the user's cache; its own name if empty.
        overlay: the changes of the user.
        config: the keys of `suite:` in it.
        data: folder of the suite's data (``--data``); None if the suite finds it itself.
    """

    class Config(Options):
        """The suite's own keys (`suite:` in an overlay): none."""

    recipe_file = "recipe.yaml"
    published: Published | None = None
    claims: Claims | None = None
    sources: tuple[Fetchable, ...] = ()
    by_hand: str = ""
    cache: str = ""
    overlay = Overlay()
    data: Path | None = None

    def __init__(self) -> None:
        self.config: Any = self.Config()

    @functools.cached_property
    def orders(self) -> Mapping[int, Sequence[str]]:  # type: ignore[override]
        """By default, one order: that of the template."""
        return {0: tuple(item["name"] for item in self.template()["domains"])}

    @property
    def domains(self) -> tuple[str, ...]:
        """Return every domain that occurs in an order."""
        return tuple(dict.fromkeys(name for order in self.orders.values() for name in order))

    @property
    def report(self) -> Path | None:
        """The report on changes of the text; None for suites that leave it unchanged."""
        return None

    def on(self, overlay: Overlay, data: Path | None = None) -> Self:
        """Return the suite with a user's changes and data.

        Args:
            overlay: the changes of the user.
            data: folder of the suite's data; None if the suite finds it itself.

        Raises:
            RecipeError: `suite:` has an unknown key, or a value that is not allowed.
        """
        changed = copy.copy(self)
        changed.overlay, changed.settings, changed.data = overlay, overlay.grid, data
        changed.config = self.config_of(overlay)
        return changed

    def config_of(self, overlay: Overlay) -> Any:
        """Return the keys of `suite:`, typed."""
        return typed(self.Config, overlay.suite, "suite")

    def selected_sources(self, config: Any) -> tuple[Fetchable, ...]:
        """Return the sources that a stream with these keys needs."""
        return self.sources

    def make(self, folder: Path, known: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]) -> list[str]:
        """Build the files that are derived from downloaded ones and do not exist yet.

        Args:
            folder: the downloaded files.
            known: path in `folder` → recorded address, digest and size in bytes.
            say: called with each progress message.

        Returns:
            A sentence for each file that could not be built.
        """
        return []

    def locate(self, inside: str) -> Path:
        """Return the file or folder at an address, built on demand.

        Args:
            inside: the address after ``suite:NAME/``.

        Raises:
            RecipeError: there is no such address.
            DataError: the data that it is built from is missing.
        """
        raise NotImplementedError

    def check_address(self, inside: str, known: Iterable[str]) -> None:
        """Raise ``RecipeError`` unless an address is one of the suite's."""
        if inside not in (listed := list(known)):
            raise RecipeError(f"The suite '{self.name}' has no '{inside}'.{did_you_mean(inside, listed)}")

    # -- the recipe -------------------------------------------------------------------------------------------

    def template(self) -> dict[str, Any]:
        """Return the template with all its domains and end tasks."""
        raw = read_yaml(_beside(type(self), self.recipe_file), "template")
        known = {} if type(self).orders is Suite.orders else {"orders": self.domains}
        return expanded(raw, self.name, known)

    def begin(self, raw: dict[str, Any]) -> None:
        """Complete the template in place with what YAML cannot express, before the user's keys are applied."""

    def finish(self, raw: dict[str, Any]) -> None:
        """Complete the recipe of one run, in place, where it depends on its domains or on the user's keys."""

    def recipe(
        self, order: int | Sequence[str], *, method: Sequence[Mapping[str, Any]], seed: int, name: str, folder: Path
    ) -> dict[str, Any]:
        """Return the recipe of a run: the template, the user's keys, the domains in this order with their end tasks."""
        raw = self.template()
        self.begin(raw)
        lay_over(raw, self.overlay.recipe)
        if not raw.get("model"):
            raise RecipeError("The grid needs a base model: `--model`, or `model` in the settings.")
        names = self.chosen(order)
        domains = {item["name"]: item for item in raw["domains"]}
        raw["domains"] = [domains[each] for each in names]
        places: dict[Any, int] = {None: len(names), **{each: place for place, each in enumerate(names)}}
        tasks = [task for task in raw["end_tasks"] if task.get("domain") in places]
        raw["end_tasks"] = sorted(tasks, key=lambda task: places[task.get("domain")])
        raw["method"] = with_samples(method, self.settings.importance_samples)
        raw["run"] = {"name": name, "seed": seed, "folder": str(folder)}
        raw["train"] = dict(raw.get("train") or {})
        if self.overlay.tokens is not None:
            raw["train"]["max_steps"] = steps_of(self.overlay.tokens, raw)
        self.finish(raw)
        raw["train"] = with_shares(raw["train"])
        raw["model"] = with_addresses({"path": raw["model"]}, self.name, self.locate)["path"]
        check_objective(raw["model"], raw.get("objective"))
        return with_addresses(raw, self.name, self.locate)

    def chosen(self, order: int | Sequence[str]) -> tuple[str, ...]:
        """Return the domains of a numbered order, or the named domains after a check.

        Raises:
            RecipeError: there is no such order or domain, or a domain is repeated.
        """
        if isinstance(order, int):
            if order not in self.orders:
                known = ", ".join(map(self.order_title, self.orders))
                raise RecipeError(f"The suite `{self.name}` has no order {order}; it has {known}.")
            return tuple(self.orders[order])
        names = tuple(order)
        for each in names:
            if each not in self.domains:
                raise RecipeError(f"The suite `{self.name}` has no domain '{each}'.{did_you_mean(each, self.domains)}")
        if not names or len(set(names)) < len(names):
            raise RecipeError(f"An order names one domain or more, each once (got {', '.join(names) or 'none'}).")
        return names

    def programs(self) -> list[str]:
        """Return the end tasks of the template that run generated code (`run_code`).

        Raises:
            RecipeError: there is none.
        """
        tasks = self.template()["end_tasks"]
        names = [task["name"] for task in tasks if "run_code" in CONFIGS[kind_of(task)].model_fields]
        if not names:
            raise RecipeError(f"`--run-code`: no end task of the suite `{self.name}` has programs.")
        return names

    def facts(self) -> dict[str, Any]:
        """Return the settings that are in no recipe: the suite's own keys, and the rows for measuring importance."""
        own = self.config.model_dump(mode="json", exclude_defaults=True)
        samples = self.settings.importance_samples
        return ({"suite": own} if own else {}) | ({"importance_samples": samples} if samples is not None else {})


def _beside(cls: type, name: str) -> Path:
    """Return a file in the folder of a class, or of the first of its base classes that has it."""
    folders = [Path(sys.modules[each.__module__].__file__ or "").parent for each in cls.__mro__ if each is not object]
    paths = [folder / name for folder in folders if (folder / name).is_file()]
    return paths[0] if paths else folders[0] / name


S = TypeVar("S", bound=Suite)


def register_suite(cls: type[S]) -> type[S]:
    """Register a suite under its name.

    Then recipes can use paths ``suite:NAME/…``, and ``everlearn bench NAME`` runs the suite.
    """
    SUITES.add(cls.name, cls())
    return cls


def find_suite(name: str) -> Suite:
    """Return a suite by its name.

    Raises:
        RecipeError: there is no suite of this name, or it has addresses and nothing to run.
    """
    registered = suite(name)
    if not isinstance(registered, Suite):
        raise RecipeError(f"The suite '{name}' has addresses and no recipes: there is nothing to run.")
    return registered
