"""Decide which cells a run measures: `evaluation.columns` for held-out text, `evaluation.end_tasks` for tasks.

=========  ====================  ==========================================  ====================================
columns    base model (row 0)    after domain i (row i < T)                  after the last domain (row T)
=========  ====================  ==========================================  ====================================
``own``    everything            domain i, general                           everything: all domains are seen
``seen``   everything            domains 1 … i, general                      everything
``all``    everything            everything                                  everything
=========  ====================  ==========================================  ====================================

For T domains these are about 3 T, T²/2 and T² cells. Each setting yields the learnt and forgotten amounts. Forward
transfer needs ``all`` (the score right before a domain's own stage). ``own`` does not give the `max` form of
forgetting, which needs the score after every later domain. When `everlearn learn` adds a domain, there is a new last
row; extra cells of the former last row are kept. Tasks that `evaluation` itself sets (`lm_eval`, `chat`) are measured
in every row.
"""

from __future__ import annotations

from everlearn.config.recipe import Recipe
from everlearn.evaluation.task import TASK_KINDS, TaskConfig


def held_out_names(recipe: Recipe) -> list[str]:
    """Return the names of domains with held-out text, then that of the general text if it has some."""
    general = [recipe.general] if recipe.general is not None else []
    return [domain.name for domain in (*recipe.domains, *general) if domain.held_out]


def wanted_sets(recipe: Recipe, row: int) -> list[str]:
    """Return the held-out sets that are scored after `row` domains; 0 is the base model."""
    return held_out_names(recipe) if row in (0, len(recipe.domains)) else sets_inside(recipe, row)


def sets_inside(recipe: Recipe, index: int) -> list[str]:
    """Return the held-out sets that are scored during the stage of domain `index` (`evaluation.every`, `stop`)."""
    if recipe.evaluation.columns == "all":
        return held_out_names(recipe)
    domains = [domain.learns for domain in recipe.domains]
    earlier = recipe.evaluation.columns == "seen" or (recipe.stop is not None and recipe.stop.earlier is not None)
    unwanted = set(domains).difference(domains[:index] if earlier else domains[index - 1 : index])
    return [name for name in held_out_names(recipe) if name not in unwanted]


def tasks_inside(recipe: Recipe) -> list[TaskConfig]:
    """Return the end tasks that can be scored during a stage (`evaluation.tasks_every`): those without fine-tuning."""
    return [task for task in recipe.end_tasks if not TASK_KINDS[task.kind].fine_tunes]


def wanted_tasks(recipe: Recipe, row: int) -> list[TaskConfig]:
    """Return the end tasks that are measured after `row` domains."""
    last, always = len(recipe.domains), recipe.evaluation.always()
    if row in (0, last) or recipe.evaluation.end_tasks == "every":
        return list(recipe.tasks)
    if recipe.evaluation.end_tasks == "groups" and recipe.domains[row - 1].group != recipe.domains[row].group:
        return list(recipe.tasks)
    if recipe.evaluation.end_tasks in ("final", "groups"):
        return list(always)
    return [*(task for task in recipe.end_tasks if task.domain == recipe.domains[row - 1].learns), *always]
