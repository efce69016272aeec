"""Turn a number of tokens per domain into a number of steps (``--budget`` of ``everlearn sweep`` and ``bench``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from everlearn.config.recipe import Recipe
from everlearn.errors import RecipeError

_ROWS = ("per_device_train_batch_size", "gradient_accumulation_steps")
_FIXED = ("train.max_steps", *(f"train.{key}" for key in _ROWS), "data.block_size")
"""Keys that decide on the tokens of a domain."""


def steps_of(tokens: int, raw: Mapping[str, Any]) -> int:
    """Return the number of steps in which a recipe (as plain data) trains on `tokens` tokens.

    Raises:
        RecipeError: it is less than one, or the recipe does not set the tokens of a step.
    """
    rows = raw["train"].get(_ROWS[0], 8) * raw["train"].get(_ROWS[1], 1)
    if (block := (raw.get("data") or {}).get("block_size")) is None:
        raise RecipeError("`--budget` needs `data.block_size`, the tokens of a row.")
    if tokens < rows * block:
        raise RecipeError(f"`--budget` is {tokens}, less than one step of {rows} rows of {block} tokens.")
    return int(tokens // (rows * block))


def steps_of_sweep(tokens: int, recipe: Recipe, sets: Iterable[str]) -> int:
    """Return the number of steps of every row of a sweep.

    Args:
        tokens: tokens of each domain.
        recipe: the recipe of the sweep.
        sets: changes that are tried, `key=values` each.

    Raises:
        RecipeError: as in :func:`steps_of`; or a domain, or a change, has another number of tokens.
    """
    for key in (text.partition("=")[0] for text in sets):
        if key in _FIXED:
            raise RecipeError(f"`--budget` gives all rows the same tokens, but `--set` changes `{key}`. Leave one out.")
    if own := next((domain.name for domain in recipe.domains if "max_steps" in domain.train), None):
        raise RecipeError(f"`--budget` sets `train.max_steps`, but domain '{own}' has its own. Remove it there.")
    return steps_of(tokens, recipe.model_dump(mode="json"))
