"""The base class of a suite: a stream of domains, with the numbers that others published and claim for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from everlearn.errors import RecipeError, did_you_mean
from everlearn.plugins import Registry
from everlearn.suites.claims import Claims, Metric
from everlearn.suites.settings import Settings
from everlearn.suites.sources import Fetchable


@dataclass(frozen=True)
class Published:
    """Published numbers.

    Attributes:
        title: the name of the publication.
        columns: meaning of each number, as in the source.
        rows: row → numbers in percent; None if the source has none.
        caption: where they were read, and what is doubtful.
        beside: what our tables show beside them: a number of :func:`everlearn.grid.summary.numbers`, and its
            order (None: the mean over all). Averages and forgetting of the metrics of the suite if empty.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    caption: str
    beside: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class System:
    """A row of the table of a suite that is more than a single method: several combined, or with other options.

    Attributes:
        title: title in tables.
        methods: the methods, as in a recipe.
        paper: URL, or "".
        changes: dotted keys of the recipe that differ from the other rows.
        wants: keys that the settings must set for this row (`entries`); without them it would equal another row.
    """

    title: str
    methods: tuple[Mapping[str, Any], ...]
    paper: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    wants: tuple[str, ...] = ()


class Suite:
    """Base class of suites. Subclass, set the attributes, implement both functions, decorate with ``@register_suite``.

    Attributes:
        name: name in addresses (``suite:NAME/…``) and for ``everlearn bench``.
        orders: numbered orders of the same domains.
        order_names: names of some orders, for ``--orders``.
        tasks: end task → the domain that it belongs to.
        published: published numbers.
        claims: claims of a paper about measurements on this suite.
        groups: names for several rows of a table, such as ``all``; tables list rows in this order.
        paper_names: names in the paper of rows that have another name here, without spaces and hyphens.
        ranked: whether tables sort the rows by result, the best first, instead of in the order of groups.
        systems: rows of the table that are not a single method with its defaults, by name; they take precedence over a
            method of the same name.
        metrics: metrics of end tasks, the main one first; one for each table.
        lacks: dotted keys of the settings that have no meaning here.
        sources: where its data can be fetched (``--data fetch``).
        by_hand: where to get data that cannot be fetched.
        cache: name of its folder in the user's cache; its own name if empty.
    """

    name: str
    orders: Mapping[int, Sequence[str]]
    order_names: Mapping[str, int] = {}
    tasks: Mapping[str, str]
    published: Published | None = None
    claims: Claims | None = None
    groups: Mapping[str, tuple[str, ...]] = {}
    paper_names: Mapping[str, str] = {}
    ranked = False
    systems: Mapping[str, System] = {}
    metrics: tuple[Metric, ...] = ("f1", "accuracy")
    lacks: tuple[str, ...] = ()
    sources: tuple[Fetchable, ...] = ()
    by_hand: str = ""
    cache: str = ""

    @property
    def report(self) -> Path | None:
        """The report on how the text was changed, of suites that change it; None otherwise."""
        return None

    @property
    def super_domains(self) -> Mapping[str, str]:
        """Domain → super-domain, for those that have one; domains of other streams may be included."""
        return {}

    @property
    def training_bytes(self) -> Mapping[str, int]:
        """Domain → bytes of its training text, of suites that record them."""
        return {}

    @property
    def first(self) -> tuple[str, ...]:
        """The domains in the order that is used where no order matters."""
        return tuple(self.orders[min(self.orders)])

    def on(self, settings: Settings, data: Path | None) -> Suite:
        """Return the suite with its domains and orders if they depend on settings and data; else the suite itself.

        Args:
            settings: the settings of the grid.
            data: folder of the suite's data; None if the suite finds it itself.
        """
        return self

    def wanted(self, settings: Settings) -> tuple[Fetchable, ...]:
        """Return the sources that a stream with these settings needs."""
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

    def order_title(self, order: int) -> str:
        """Return the number of an order, and its name."""
        return next((f"{order} ({name})" for name, number in self.order_names.items() if number == order), str(order))

    def check(self, settings: Settings) -> None:
        """Refuse settings that have no meaning for this suite.

        Raises:
            RecipeError: there is one.
        """
        for key in self.lacks:
            given: Any = settings
            for part in key.split("."):
                given = getattr(given, part)
            if given is not None:
                raise RecipeError(f"`{key}` is '{given}' in the settings, but `{self.name}` has no such choice.")

    def facts(self) -> dict[str, Any]:
        """Return further facts that must be equal for two cells of one table, of suites whose recipes may change."""
        return {}

    def locate(self, inside: str) -> Path:
        """Return the file or folder at an address, built on demand.

        Args:
            inside: the address after ``suite:NAME/``.

        Raises:
            RecipeError: there is no such address.
            DataError: the data that it is built from is missing.
        """
        raise NotImplementedError

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
        """Return the recipe of a run as plain data, with end tasks evaluated after their own domain.

        Args:
            order: a number of :attr:`orders`, or some of the domains by name.
            settings: the settings of the grid.
            data: folder of the suite's data; None if the suite finds it itself.
            method: the methods that are combined, as in a recipe.
            seed: seed of the run.
            name: name of the run.
            folder: folder of the run.

        Raises:
            RecipeError: there is no such order or domain, or a setting does not fit.
            DataError: a file is missing.
        """
        raise NotImplementedError


SUITES: Registry[Suite] = Registry("suites")
S = TypeVar("S", bound=Suite)


def register_suite(cls: type[S]) -> type[S]:
    """Register a suite by name, for addresses and for ``everlearn bench``."""
    SUITES.add(cls.name, cls())
    return cls


def find_suite(name: str) -> Suite:
    """Return a suite by its name.

    Raises:
        RecipeError: there is no suite of this name.
    """
    if name not in SUITES:
        raise RecipeError(f"There is no suite '{name}'.{did_you_mean(name, SUITES)}")
    return SUITES[name]


def locate(address: str) -> Path:
    """Return the file or folder at a ``suite:`` path, given without that prefix.

    Raises:
        RecipeError: there is no such suite or file.
        DataError: the data that the file is built from is missing.
    """
    suite, _, inside = address.partition("/")
    if suite not in SUITES:
        raise RecipeError(f"There is no suite '{suite}' ('suite:{address}').{did_you_mean(suite, SUITES)}")
    return SUITES[suite].locate(inside)
