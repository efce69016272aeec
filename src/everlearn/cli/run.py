"""``everlearn run``: start a new run."""

from __future__ import annotations

from everlearn.cli.common import Overrides, RecipeFile, take_to_its_end


def command(recipe: RecipeFile, overrides: Overrides = None) -> None:
    """Learn every domain of a recipe, measure after each, write a report."""
    from everlearn.config.recipe import load
    from everlearn.learner import ContinualLearner
    from everlearn.model.loading import quiet
    from everlearn.run.progress import Terminal

    quiet()
    learner = ContinualLearner(load(recipe, overrides or ()), reporter=Terminal())
    take_to_its_end(learner, learner.run)
