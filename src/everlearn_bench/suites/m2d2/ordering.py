"""Orders of the domains: similar ones adjacent, super-domains swapped, random, or from a file.

The study says of its orders: similar domains adjacent, by Sentence-BERT, Wikipedia before S2ORC; one shuffle. The
algorithm below is ours, since none was published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everlearn import files
from everlearn.errors import EverlearnError, RecipeError, did_you_mean
from everlearn.seeding import seed_for
from everlearn_bench.suites.m2d2.domain_names import Branch
from everlearn_bench.suites.m2d2.embedding import Vector, cosine

SIMILAR, SWAPPED, FILE, RANDOM = "similar", "swapped", "file", "random"
SHUFFLES = 20
"""How many orders by chance have a name."""
NUMBERS = {SIMILAR: 0, SWAPPED: 1, FILE: 2, **{f"{RANDOM}-{n}": 10 + n for n in range(1, SHUFFLES + 1)}}
"""Name of an order → its number in tables and files."""


class Orders(Mapping[int, tuple[str, ...]]):
    """Numbered orders, each computed on demand.

    Args:
        makers: number → a function that computes the order.
    """

    def __init__(self, makers: Mapping[int, Callable[[], tuple[str, ...]]]) -> None:
        self._makers, self._orders = makers, dict[int, tuple[str, ...]]()

    def __getitem__(self, number: int) -> tuple[str, ...]:
        """Return the order with a number."""
        if number not in self._orders:
            self._orders[number] = self._makers[number]()
        return self._orders[number]

    def __contains__(self, number: object) -> bool:
        """Return whether there is such an order, without computing it."""
        return number in self._makers

    def __iter__(self) -> Iterator[int]:
        """Iterate over the numbers."""
        return iter(self._makers)

    def __len__(self) -> int:
        """Return the number of orders."""
        return len(self._makers)

    def name_of(self, order: Sequence[str]) -> str | None:
        """Return the name of an order among those that were computed, or None."""
        names = {number: name for name, number in NUMBERS.items()}
        return next((names[number] for number, known in self._orders.items() if known == tuple(order)), None)


def similar(branches: Mapping[str, Branch], vectors: Mapping[str, Vector], start: Vector | None) -> tuple[str, ...]:
    """Order domains by greedy nearest neighbours (cosine) inside each super-domain, group by group.

    The first group is the one whose mean is nearest to `start`, each next one the one whose mean is nearest to that of
    the previous group; the first domain is the one nearest to `start`, each next one of its group the one nearest to
    the previous domain. Every super-domain starts anew, so swapping them changes nothing else; super-domains keep their
    order.

    Args:
        branches: the place of every domain, in the order in which they are listed.
        vectors: vector of every domain.
        start: vector of general text; None for the mean of all domains.
    """
    origin = np.mean([vectors[name] for name in branches], 0) if start is None else start
    order: list[str] = []
    for super_domain in dict.fromkeys(branch.super_domain for branch in branches.values()):
        groups: dict[str, dict[str, Vector]] = {}
        for name, branch in branches.items():
            if branch.super_domain == super_domain:
                groups.setdefault(branch.group, {})[name] = vectors[name]
        means = {group: np.mean(list(inside.values()), 0) for group, inside in groups.items()}
        before = origin
        for group in chain(means, origin):
            order += (chained := chain(groups[group], before))
            before = vectors[chained[-1]]
    return tuple(order)


def chain(vectors: Mapping[str, Vector], start: Vector) -> list[str]:
    """Return the names, each the nearest of the remaining ones to the previous one; the first if tied."""
    left, order, at = dict(vectors), list[str](), start
    while left:
        nearest = max(left, key=lambda name: cosine(left[name], at))
        at = left.pop(nearest)
        order.append(nearest)
    return order


def swapped(order: Sequence[str], branches: Mapping[str, Branch]) -> tuple[str, ...]:
    """Return the same order with its super-domains reversed."""
    parts: dict[str, list[str]] = {}
    for name in order:
        parts.setdefault(branches[name].super_domain, []).append(name)
    return tuple(name for super_domain in reversed(parts) for name in parts[super_domain])


def shuffled(names: Sequence[str], number: int) -> tuple[str, ...]:
    """Return a random order that depends only on the set of names and the number."""
    listed = sorted(names)
    drawn = np.random.default_rng(seed_for("m2d2", RANDOM, number)).permutation(len(listed))
    return tuple(listed[place] for place in drawn)


def from_file(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Read an order from a file: one name per line, or ``domains`` in a JSON file, such as the results of a run.

    Raises:
        RecipeError: it cannot be read, or does not name every domain once.
    """
    try:
        text = files.read_text(path)
    except EverlearnError as error:
        raise RecipeError(f"`suite.order`: {error}") from None
    if path.suffix == ".json":
        try:
            raw: Any = json.loads(text)
        except ValueError as error:
            raise RecipeError(f"`suite.order`: '{path}' is no JSON: {error}.") from None
        listed = raw.get("domains") if isinstance(raw, dict) else None
        if not isinstance(listed, list):
            raise RecipeError(f"`suite.order`: '{path}' has no list `domains`.")
        order = [str(each) for each in listed]
    else:
        order = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if unknown := next((name for name in order if name not in names), None):
        raise RecipeError(
            f"`suite.order`: '{path}' names '{unknown}', no domain of the stream.{did_you_mean(unknown, names)}"
        )
    lacking = [name for name in names if name not in order]
    if lacking or len(set(order)) < len(order):
        twice = next((name for name in order if order.count(name) > 1), "")
        what = f"'{lacking[0]}' is missing" if lacking else f"'{twice}' comes twice"
        raise RecipeError(f"`suite.order`: '{path}' must name every domain of the stream once, and {what}.")
    return tuple(order)
