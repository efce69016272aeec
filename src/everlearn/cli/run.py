"""``everlearn run``: start a new run."""

from __future__ import annotations

from everlearn.cli.common import AsJson, Overrides, Quiet, RecipeFile, take_to_its_end, telling


def command(recipe: RecipeFile, overrides: Overrides = None, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Train on every domain of a recipe, evaluate after each, and write a report."""
    from everlearn.config.recipe import load
    from everlearn.learner import ContinualLearner

    reporter = telling(quiet)
    learner = ContinualLearner(load(recipe, overrides or ()), reporter=reporter)
    take_to_its_end(learner, learner.run, quiet, as_json)
