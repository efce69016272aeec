"""Rows of equal compute: what a method runs beside plain training is taken from its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everlearn.errors import RecipeError
from everlearn.grid.compute import Effort
from everlearn.grid.rows import RowSpec
from everlearn.grid.runs import Job, RunFactory
from everlearn.learner import ContinualLearner
from everlearn.model.loading import load_model

STEPS = "train.max_steps"


def equalised(entries: Sequence[RowSpec], factory: RunFactory) -> list[RowSpec]:
    """The same rows, each with as many steps (rounded down) as take what plain training takes in the recipe's.

    Only ``train.max_steps`` is changed; a schedule that is a share of the steps goes with it.

    Raises:
        RecipeError: the recipe does not count its steps for all domains alike, or what a method does outside of the
            steps takes as much as they do.
    """
    models: dict[str, Any] = {}
    return [_equalised(entry, factory, models) for entry in entries]


def _equalised(entry: RowSpec, factory: RunFactory, models: dict[str, Any]) -> RowSpec:
    methods = tuple(factory.settings.spec(method["name"]) | method for method in entry.methods)
    recipe = factory.recipe(Job(None, None, factory.first, methods, entry.changes), factory.runs / entry.name / "run")
    learner = ContinualLearner(recipe, reporter=factory.reporter)
    own = next((domain.name for domain in recipe.domains if "max_steps" in domain.train), None)
    if own is not None or recipe.train.get("max_steps", 0) < 1:
        said = f"domain '{own}' has a number of its own" if own else "the recipe does not set it"
        raise RecipeError(f"`--equal-compute` shortens `{STEPS}`, and {said}: set it once, in `train`.")
    model = models.get(key := recipe.model.model_dump_json())
    if model is None:
        model = models[key] = load_model(recipe.model, recipe.run.seed)
    learner.check_methods(model)
    effort = Effort.of(learner, [method.cost(model) for method in recipe.methods()])
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
