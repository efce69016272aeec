"""What a suite is: a stream of domains for everybody, with what others measured on it and claim about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from everlearn.errors import RecipeError, did_you_mean
from everlearn.suites.claims import Claims, Metric
from everlearn.suites.settings import Settings
from everlearn.suites.sources import Fetchable


@dataclass(frozen=True)
class Published:
    """Numbers that others published.

    Attributes:
        title: whose.
        columns: what each number is, as the source says.
        rows: entry → numbers in percent; None where the source has none.
        caption: where they were read, and what is doubtful.
        beside: what of ours stands beside them: a number of :func:`everlearn.benchmarking.summary.numbers`, and the
            order that it is of (None: the mean over all). Averages and forgetting of the suite's metrics when empty.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    caption: str
    beside: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class System:
    """A row of a suite's table that is more than one method's name: several together, or with other options.

    Attributes:
        title: as tables write it.
        methods: as a recipe has them.
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
    """Base of the suites. Subclass, set the attributes, write both functions, decorate with ``@register_suite``.

    Attributes:
        name: the word in addresses (``suite:NAME/…``) and for ``everlearn bench``.
        orders: numbered orders of the same domains.
        order_names: what some of them are called, for ``--orders``.
        tasks: end task → the domain that it belongs to.
        published: what others measured on it.
        claims: what a paper claims that was measured on it.
        groups: words for several entries of a table, such as ``all``; tables list entries in this order.
        paper_names: what its paper calls entries that have another name here, without spaces and hyphens.
        ranked: whether tables list the entries by what they brought, the best first, and not in the order of groups.
        systems: rows of the table that are no single method, or one with other options, by name; a name that a method
            has too stands for the row.
        metrics: of end tasks, the leading one first; one for each table.
        lacks: keys of the settings, dotted, that mean nothing here.
        sources: where its data can be fetched (``--data fetch``).
        by_hand: where to get what cannot be fetched.
        cache: its folder in the user's cache; its name when empty.
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
        """A file with what became of the text, of suites that change it."""
        return None

    @property
    def super_domains(self) -> Mapping[str, str]:
        """Domain → its super-domain, of those that have one; domains of other streams may be listed too."""
        return {}

    @property
    def training_bytes(self) -> Mapping[str, int]:
        """Domain → bytes of its training text, of suites that have written them down."""
        return {}

    @property
    def first(self) -> tuple[str, ...]:
        """The domains in the order of what is not learnt in any."""
        return tuple(self.orders[min(self.orders)])

    def on(self, settings: Settings, data: Path | None) -> Suite:
        """The suite with its domains and orders, where settings and data decide them; else the suite as it is.

        Args:
            settings: what is not the suite's own.
            data: folder of the suite's data; None where the suite finds it itself.
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
        """An order's number, and what it is called."""
        return next((f"{order} ({name})" for name, number in self.order_names.items() if number == order), str(order))

    def check(self, settings: Settings) -> None:
        """Refuse settings that mean nothing here.

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
        """What else must be equal for two cells to stand in one table: of suites whose recipes may change."""
        return {}

    def locate(self, inside: str) -> Path:
        """The file or folder behind an address, made on demand.

        Args:
            inside: the address after ``suite:NAME/``.

        Raises:
            RecipeError: there is no such address.
            DataError: what it is made of is missing.
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
        """What the recipe of a run holds. End tasks are wanted after the task's own domain.

        Args:
            order: a number of :attr:`orders`, or some of the domains by name.
            settings: what is not the suite's own.
            data: folder of the suite's data; None where the suite finds it itself.
            method: those that work together, as in a recipe.
            seed: of the run.
            name: of the run.
            folder: of the run.

        Raises:
            RecipeError: there is no such order or domain, or a setting does not fit.
            DataError: a file is missing.
        """
        raise NotImplementedError


SUITES: dict[str, Suite] = {}
S = TypeVar("S", bound=Suite)


def register_suite(cls: type[S]) -> type[S]:
    """Make a suite known by name to addresses and to ``everlearn bench``."""
    SUITES[cls.name] = cls()
    return cls


def find_suite(name: str) -> Suite:
    """A suite by its name.

    Raises:
        RecipeError: there is none of this name.
    """
    if name not in SUITES:
        raise RecipeError(f"There is no suite '{name}'.{did_you_mean(name, SUITES)}")
    return SUITES[name]


def locate(address: str) -> Path:
    """The file or folder behind a ``suite:`` path, without that prefix.

    Raises:
        RecipeError: there is no such suite or file.
        DataError: what the file is made of is missing.
    """
    suite, _, inside = address.partition("/")
    if suite not in SUITES:
        raise RecipeError(f"There is no suite '{suite}' ('suite:{address}').{did_you_mean(suite, SUITES)}")
    return SUITES[suite].locate(inside)
