"""Define the search space: the learning rate, and the options that each method declares (:attr:`Method.search`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everlearn.config.arguments import default_of
from everlearn.config.recipe import Recipe
from everlearn.errors import RecipeError
from everlearn.grid import RecipeTemplate, read_variations
from everlearn.methods import build
from everlearn.methods.sequential import PLAIN
from everlearn.ranges import Around, Range

RATE = Around(5)
"""Range of the learning rate: a fifth of the recipe's to five times it."""
_NOT_SEARCHED = "`--methods` has '{}', which is no method that is trained on the domains in turn."


@dataclass(frozen=True)
class Draw:
    """One dimension of the search.

    Attributes:
        method: position of the method in the row; None for the learning rate.
        option: name of the option.
        range: range of values.
        value: value in the recipe.
    """

    method: int | None
    option: str
    range: Range
    value: Any


@dataclass(frozen=True)
class Candidate:
    """A row of the search: methods that are trained together.

    Attributes:
        name: name for files.
        title: name in tables.
        methods: the methods, in the form of a recipe.
        draws: the dimensions; the learning rate first.
    """

    name: str
    title: str
    methods: tuple[dict[str, Any], ...]
    draws: tuple[Draw, ...]

    @property
    def plain(self) -> bool:
        """Return whether it is plain training, which appears as a curve over learning rates."""
        return [method["name"] for method in self.methods] == [PLAIN]

    def at(self, point: Sequence[float]) -> tuple[float, list[dict[str, Any]], dict[str, Any]]:
        """Return the learning rate, the methods and their drawn options.

        Args:
            point: numbers in [0, 1), one for each dimension; more are ignored.
        """
        methods, settings, rate = [dict(method) for method in self.methods], dict[str, Any](), 0.0
        for draw, u in zip(self.draws, point, strict=False):
            value = draw.range.at(u, draw.value)
            if draw.method is None:
                rate = value
            else:
                methods[draw.method][draw.option] = value
                several = len(self.methods) > 1
                settings[f"{methods[draw.method]['name']}.{draw.option}" if several else draw.option] = value
        return rate, methods, settings


def rate_of(recipe: Recipe) -> float:
    """Return the learning rate of a recipe, by default that of ``TrainingArguments``."""
    default = default_of("learning_rate")
    assert default is not None, "transformers has a learning rate"
    return float(recipe.train.get("learning_rate", default[0]))


def rows_of(recipe: Recipe, methods: str | None = None) -> list[Candidate]:
    """Return plain training and the rows that are searched.

    Args:
        recipe: the user's recipe; its learning rate is the middle of the range.
        methods: with commas between them, as `everlearn sweep` reads them; None for the recipe's own.

    Raises:
        RecipeError: a row is no method, or a value of the recipe cannot be searched around.
        MethodError: a method or one of its options is unknown.
    """
    rate = Draw(None, "learning_rate", RATE, rate_of(recipe))
    template = RecipeTemplate(recipe, recipe.run.name)
    rows = {PLAIN: Candidate(PLAIN, build(PLAIN).title, ({"name": PLAIN},), (rate,))}
    for row in read_variations(methods, (), template):
        if not (row.ordered and row.seeded and row.needs_base):
            raise RecipeError(_NOT_SEARCHED.format(row.name))
        own = tuple(template.settings.spec(spec["name"]) | spec for spec in row.methods)
        draws = [draw for place, spec in enumerate(own) for draw in _draws(place, spec)]
        rows.setdefault(row.name, Candidate(row.name, row.title, own, (rate, *draws)))
    return list(rows.values())


def _draws(place: int, spec: dict[str, Any]) -> list[Draw]:
    """Return the dimensions of one method: its main option, and other options that differ from their defaults."""
    method = build(spec)
    default, draws = build(spec["name"]).config, []
    for position, (option, range_) in enumerate(method.search.items()):
        value = getattr(method.config, option)
        # A strength of 0 disables a part of the method, and a range around it would be empty.
        searchable = bool(value) if isinstance(range_, Around) else True
        if searchable and (position == 0 or value != getattr(default, option)):
            draws.append(Draw(place, option, range_, value))
    return draws
