"""Order domains by their difficulty, as a run has measured it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everlearn.errors import RecipeError
from everlearn.evaluation import METRICS, Cell, alone_path, set_path

ORDERS = {
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
    whose, hard_first = ORDERS[word]
    evaluation = Path(run).expanduser() / "evaluation"
    places = {name: _place(evaluation, whose, name) for name in names}
    for name, place in places.items():
        if not run or not place.is_file():
            how = "with `evaluation.alone: true`" if whose == "alone" else "of a recipe that has this domain"
            raise RecipeError(
                f"`--orders` has '{text}', but '{run}' has not measured how difficult '{name}' is. Name the folder of "
                f"a run {how}."
            )
    bits = {name: METRICS["bits_per_byte"].score(Cell.load(place)) for name, place in places.items()}
    return tuple(sorted(names, key=lambda name: -bits[name] if hard_first else bits[name]))


def _place(evaluation: Path, whose: str, name: str) -> Path:
    return set_path(evaluation, 0, name) if whose == "base" else alone_path(evaluation, name)
