"""The base class of a suite: a stream of domains, with the numbers that others published and claim for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from everlearn.config.addresses import SUITES, suite
from everlearn.errors import RecipeError
from everlearn.grid.template import GridTemplate
from everlearn_bench.suites.claims import Claims
from everlearn_bench.suites.settings import Settings
from everlearn_bench.suites.sources import Fetchable


@dataclass(frozen=True)
class Published:
    """Published numbers.

    Attributes:
        title: the name of the publication.
        columns: meaning of each number, as in the source.
        rows: row → numbers in percent; None if the source has none.
        caption: where they were read, and what is doubtful.
        beside: what our tables show beside them: a number of :mod:`everlearn.grid.numbers`, and its
            order (None: the mean over all). Averages and forgetting of the metrics of the suite if empty.
    """

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    caption: str
    beside: tuple[tuple[str, int | None], ...] = ()


class Suite(GridTemplate):
    """Base class of suites. Subclass, set the attributes, implement `locate` and `recipe`, use ``@register_suite``.

    Attributes (beside those of a template):
        name: name in addresses (``suite:NAME/…``) and for ``everlearn bench``.
        tasks: end task → the domain that it belongs to.
        published: published numbers.
        claims: claims of a paper about measurements on this suite.
        lacks: dotted keys of the settings that have no meaning here.
        sources: where its data can be fetched (``--data fetch``).
        by_hand: where to get data that cannot be fetched.
        cache: name of its folder in the user's cache; its own name if empty.
    """

    tasks: Mapping[str, str]
    published: Published | None = None
    claims: Claims | None = None
    lacks: tuple[str, ...] = ()
    sources: tuple[Fetchable, ...] = ()
    by_hand: str = ""
    cache: str = ""

    @property
    def report(self) -> Path | None:
        """The report on how the text was changed, of suites that change it; None otherwise."""
        return None

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

    def locate(self, inside: str) -> Path:
        """Return the file or folder at an address, built on demand.

        Args:
            inside: the address after ``suite:NAME/``.

        Raises:
            RecipeError: there is no such address.
            DataError: the data that it is built from is missing.
        """
        raise NotImplementedError


S = TypeVar("S", bound=Suite)


def register_suite(cls: type[S]) -> type[S]:
    """Register a suite by name, for addresses and for ``everlearn bench``."""
    SUITES.add(cls.name, cls())
    return cls


def find_suite(name: str) -> Suite:
    """Return a suite by its name.

    Raises:
        RecipeError: there is no suite of this name, or it has addresses and nothing to run.
    """
    found = suite(name)
    if not isinstance(found, Suite):
        raise RecipeError(f"The suite '{name}' has addresses and no recipes: there is nothing to run.")
    return found
