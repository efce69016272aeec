"""Give rows equal compute, taking the extra compute of a method from its steps, or equal tokens (``--budget``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everlearn.config.recipe import Recipe
from everlearn.errors import RecipeError
from everlearn.grid.compute import Effort
from everlearn.grid.rows import RowSpec
from everlearn.grid.runs import Job, RunFactory
from everlearn.learner import ContinualLearner
from everlearn.methods.engine.protection import costs_of
from everlearn.model.loading import load_model
from everlearn.run.method_checks import check_run_methods

STEPS = "train.max_steps"


def equalised(entries: Sequence[RowSpec], factory: RunFactory) -> list[RowSpec]:
    """Return the same rows, each with as many steps (rounded down) as have the compute of plain training.

    Only ``train.max_steps`` is changed; a schedule given as a share of the steps changes with it.

    Raises:
        RecipeError: the recipe does not set the same number of steps for all domains, or a method's compute outside of
            the steps is at least that of plain training.
    """
    models: dict[str, Any] = {}
    return [_equalised(entry, factory, models) for entry in entries]


def _equalised(entry: RowSpec, factory: RunFactory, models: dict[str, Any]) -> RowSpec:
    methods = tuple(factory.settings.spec(method["name"]) | method for method in entry.methods)
    recipe = factory.recipe(Job(None, None, factory.first, methods, entry.changes), factory.runs / entry.name / "run")
    learner = ContinualLearner(recipe, reporter=factory.reporter)
    own = next((domain.name for domain in recipe.domains if "max_steps" in domain.train), None)
    if own is not None or recipe.train.get("max_steps", 0) < 1:
        reason = f"domain '{own}' has a number of its own" if own else "the recipe does not set it"
        raise RecipeError(f"`--equal-compute` shortens `{STEPS}`, and {reason}: set it once, in `train`.")
    model = models.get(key := recipe.model.model_dump_json())
    if model is None:
        model = models[key] = load_model(recipe.model, recipe.run.seed)
    check_run_methods(learner, model)
    effort = Effort.of(learner, costs_of(recipe.methods(), model))
    steps = effort.steps(recipe.train["max_steps"])
    if steps < 1:
        raise RecipeError(
            f"{entry.name}: `--equal-compute` leaves no step: {effort.outside:,} rows are run outside of the steps, "
            f"and plain training takes {effort.plain:,}. Lower the method's `samples`, or raise `{STEPS}`."
        )
    if steps == recipe.train["max_steps"]:
        return entry
    return replace(
        entry,
        name=f"{entry.name}-max_steps{steps}",
        title=f"{entry.title} · max_steps {steps}",
        changes={**entry.changes, STEPS: steps},
    )


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
