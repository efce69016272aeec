"""Use a user's recipe as the template of a grid: orders of its domains, and variants of its training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everlearn import wording
from everlearn.config.reading import read_value
from everlearn.config.recipe import Recipe
from everlearn.data.blocks import hash_of
from everlearn.errors import RecipeError, did_you_mean
from everlearn.evaluation import METRICS, Cell, alone_path, set_path
from everlearn.grid.template import GridSettings, GridTemplate
from everlearn.methods.sequential import PLAIN
from everlearn.seeding import seed_for

BY_DIFFICULTY = {
    "easy-first": ("base", False),
    "hard-first": ("base", True),
    "easy-first-alone": ("alone", False),
    "hard-first-alone": ("alone", True),
}
"""Name of an order → model whose bits per byte of held-out text count (the base model, or a model trained on the domain
alone), and whether the most difficult domain comes first."""


def by_difficulty(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the order that `WORD:RUN` stands for; ties keep the recipe's order.

    Raises:
        RecipeError: the run has not measured the difficulty of every domain.
        RunError: a cell of the run is damaged.
    """
    word, _, run = text.partition(":")
    source, hard_first = BY_DIFFICULTY[word]
    evaluation = Path(run).expanduser() / "evaluation"
    places = {name: _place(evaluation, source, name) for name in names}
    for name, place in places.items():
        if not run or not place.is_file():
            how = "with `evaluation.alone: true`" if source == "alone" else "of a recipe that has this domain"
            raise RecipeError(
                f"`--orders` has '{text}', but '{run}' has not measured how difficult '{name}' is. Name the folder of "
                f"a run {how}."
            )
    bits = {name: METRICS["bits_per_byte"].score(Cell.load(place)) for name, place in places.items()}
    return tuple(sorted(names, key=lambda name: -bits[name] if hard_first else bits[name]))


def _place(evaluation: Path, source: str, name: str) -> Path:
    return set_path(evaluation, 0, name) if source == "base" else alone_path(evaluation, name)


MOST = 720
"""Maximum number of orders for `all`: those of six domains."""
RANKED_BY_PLACE = 12
"""Maximum number of domains for which an order's number is its place among all orders; beyond it is a hash."""


class RecipeTemplate(GridTemplate):
    """The stream of one recipe.

    An order's number depends only on the order, so that a later call with other orders adds cells to the same table. It
    is the place among all orders as listed by `itertools.permutations`; 0 is the recipe's own order.

    Args:
        recipe: the user's recipe; its methods are one of the rows.
        name: name in tables.
        orders: orders of its domains, by name.
    """

    ranked = True
    groups: Mapping[str, tuple[str, ...]] = {"scenarios": ("none", "separate", PLAIN, "cumulative", "pool", "merged")}

    def __init__(self, recipe: Recipe, name: str, orders: Sequence[Sequence[str]] = ()) -> None:
        self.own, self.name = recipe, name
        self.domains = tuple(domain.name for domain in recipe.domains)
        self.orders = {number_of(order, self.domains): tuple(order) for order in (orders or [self.domains])}
        # The options of the recipe's own methods apply wherever these methods are named.
        self.settings = GridSettings(methods={spec["name"]: spec for spec in recipe.method})

    @property
    def first(self) -> tuple[str, ...]:
        """Return the domains in the recipe's order, whichever orders are requested."""
        return self.domains

    @property
    def super_domains(self) -> Mapping[str, str]:
        """Return the recipe's groups of domains (`group`)."""
        return {domain.name: domain.group for domain in self.own.domains if domain.group is not None}

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        method: Sequence[Any],
        seed: int,
        name: str,
        folder: Path,
    ) -> dict[str, Any]:
        """Return the recipe with its domains in this order, this method and this seed."""
        names = self.orders[order] if isinstance(order, int) else order
        raw = self.own.model_dump(mode="json")
        domains = {domain["name"]: domain for domain in raw["domains"]}
        raw["domains"] = [domains[each] for each in names]
        raw["end_tasks"] = [task for task in raw["end_tasks"] if task["domain"] in (None, *names)]
        raw["method"] = list(method)
        raw["run"] |= {"name": name, "seed": seed, "folder": str(folder)}
        return raw


def number_of(order: Sequence[str], names: Sequence[str]) -> int:
    """Return an order's number: its place among all orders of the names, or a hash for more than twelve names."""
    if tuple(order) == tuple(names):
        return 0
    if len(names) > RANKED_BY_PLACE:
        return int(hash_of(*order)[:10], 16)
    left, number = list(names), 0
    for name in order:
        number += left.index(name) * math.factorial(len(left) - 1)
        left.remove(name)
    return number


def read_orders(text: str, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Read orders of domains from the command line, each once.

    Args:
        text: orders separated by semicolons: names separated by commas, `given`, `all`, `random:3` (three orders drawn
            at random; the same ones each time, and `random:4` has one more), or by measured difficulty
            (:data:`everlearn.grid.recipe_template.BY_DIFFICULTY`): `easy-first:RUN`.
        names: names of the domains, in the recipe's order.

    Raises:
        RecipeError: an order does not have all domains, or there are too many orders.
    """
    unique: dict[tuple[str, ...], None] = {}
    for part in (part.strip() for part in text.split(";")):
        if part == "given":
            orders = [tuple(names)]
        elif part == "all":
            if math.factorial(len(names)) > MOST:
                raise RecipeError(
                    f"`--orders all` would be {wording.count(math.factorial(len(names)), 'order')} of "
                    f"{wording.count(len(names), 'domain')}. Name some "
                    "of them, or draw them: --orders random:6."
                )
            orders = list(itertools.permutations(names))
        elif part.startswith("random:"):
            orders = _drawn(part, names)
        elif part.partition(":")[0] in BY_DIFFICULTY:
            orders = [by_difficulty(part, names)]
        else:
            orders = [_named(part, names)]
        unique |= dict.fromkeys(orders)
    return list(unique)


def _named(part: str, names: Sequence[str]) -> tuple[str, ...]:
    order = tuple(word.strip() for word in part.split(","))
    for word in order:
        if word not in names:
            raise RecipeError(
                f"`--orders` names '{word}', which is no domain of the recipe.{did_you_mean(word, names)} An order is "
                f"{','.join(names)}, `given`, `all`, `random:3` or `easy-first:RUN`; several are separated by "
                "semicolons."
            )
    if len(order) != len(names) or len(set(order)) != len(names):
        raise RecipeError(f"`--orders` has '{part}', but an order has each of {', '.join(names)} once.")
    return order


def _drawn(part: str, names: Sequence[str]) -> list[tuple[str, ...]]:
    word = part.removeprefix("random:")
    most = math.factorial(len(names))
    if not (word.isascii() and word.isdigit() and 1 <= int(word) <= min(most, MOST)):
        raise RecipeError(
            f"`--orders` has '{part}', but `random:` needs the number of orders to draw: 1 to {min(most, MOST)} for "
            f"{wording.count(len(names), 'domain')}."
        )
    generator, drawn = np.random.Generator(np.random.PCG64(seed_for("orders", *names))), dict[tuple[str, ...], None]()
    while len(drawn) < int(word):
        drawn[tuple(str(names[place]) for place in generator.permutation(len(names)))] = None
    return list(drawn)


def read_seeds(text: str) -> list[int]:
    """Read seeds from the command line: whole numbers separated by commas.

    Raises:
        RecipeError: the text is not a list of whole numbers.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise RecipeError(f"`--seeds` is '{text}', but must be whole numbers separated by commas, for example 1,2,3.")
    return list(dict.fromkeys(map(int, words)))


def read_list(option: str, text: str) -> list[Any]:
    """Read values separated by commas, each as YAML.

    Raises:
        RecipeError: the text is not valid YAML, or has no value.
    """
    values = read_value(f"[{text}]", option)
    if not isinstance(values, list) or not values:
        raise RecipeError(f"`{option}` is '{text}', but needs one or more values separated by commas.")
    return values
