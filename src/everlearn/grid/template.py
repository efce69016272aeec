"""Define the template of a grid, which gives the recipe of every run, and the settings that all runs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from everlearn.options import Options

Metric = Literal["f1", "accuracy", "glue_score"]
"""Metrics of end tasks."""


class GridSettings(Options):
    """Options of methods and of single rows that all cells of a grid share."""

    methods: dict[str, dict[str, Any]] = Field(default={})
    """Options of methods, by name, that differ from the defaults."""
    rows: dict[str, dict[str, Any]] = Field(default={})
    """Dotted keys of the recipe for single rows of the table: `{lora: {train.learning_rate: 1.0e-3}}`."""
    importance_samples: int | None = Field(default=None, ge=1)
    """Rows for measuring importance, for every method that does (`Method.importance_samples`) and sets no number."""

    def spec(self, method: str) -> dict[str, Any]:
        """Return a method with its options, as in a recipe."""
        return {"name": method, **self.methods.get(method, {})}


@dataclass(frozen=True)
class System:
    """A row of the table that is more than a single method: several combined, or with other options.

    Attributes:
        title: title in tables.
        methods: the methods, as in a recipe.
        paper: URL, or "".
        changes: dotted keys of the recipe that differ from the other rows.
        wants: keys that the settings must set for this row (`rows`); without them it would equal another row.
        make: measures a cell of this row (:attr:`everlearn.grid.rows.RowSpec.make`) without scores of the base model;
            None if the methods learn the stream.
    """

    title: str
    methods: tuple[Mapping[str, Any], ...]
    paper: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    wants: tuple[str, ...] = ()
    make: Callable[..., Any] | None = None


class GridTemplate:
    """Base class of templates: the domains of a stream in several orders, and the recipe of a run on them.

    Attributes:
        name: name in tables.
        orders: numbered orders of the same domains.
        order_names: names of some orders, for ``--orders``.
        groups: names for several rows of a table, such as ``all``; tables list rows in this order.
        paper_names: names in the paper of rows that have another name here, without spaces and hyphens.
        ranked: whether tables sort the rows by result, the best first, instead of in the order of groups.
        systems: rows of the table that are not a single method with its defaults, by name; they take precedence over a
            method of the same name.
        metrics: metrics of end tasks, the main one first; one for each table.
        settings: options of methods and of single rows.
    """

    name: str
    orders: Mapping[int, Sequence[str]]
    order_names: Mapping[str, int] = {}
    groups: Mapping[str, tuple[str, ...]] = {}
    paper_names: Mapping[str, str] = {}
    ranked = False
    systems: Mapping[str, System] = {}
    metrics: tuple[Metric, ...] = ("f1", "accuracy")
    settings: GridSettings = GridSettings()

    @property
    def first(self) -> tuple[str, ...]:
        """The domains in the order that is used where no order matters."""
        return tuple(self.orders[min(self.orders)])

    @property
    def super_domains(self) -> Mapping[str, str]:
        """The super-domain of each domain that has one; may include domains of other streams."""
        return {}

    @property
    def training_bytes(self) -> Mapping[str, int]:
        """Bytes of training text of each domain; empty if the template does not record them."""
        return {}

    def order_title(self, order: int) -> str:
        """Return the number of an order, and its name."""
        return next((f"{order} ({name})" for name, number in self.order_names.items() if number == order), str(order))

    def facts(self) -> dict[str, Any]:
        """Return further facts that must be equal for two cells of one table, beside those of the recipe."""
        return {}

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        method: Sequence[Mapping[str, Any]],
        seed: int,
        name: str,
        folder: Path,
    ) -> dict[str, Any]:
        """Return the recipe of a run as plain data, with end tasks evaluated after their own domain.

        Args:
            order: a number of :attr:`orders`, or some of the domains by name.
            method: the methods that are combined, as in a recipe.
            seed: seed of the run.
            name: name of the run.
            folder: folder of the run.

        Raises:
            RecipeError: there is no such order or domain, or a key does not fit.
            DataError: a file is missing.
        """
        raise NotImplementedError
