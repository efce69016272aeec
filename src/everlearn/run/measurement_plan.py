"""Which cells a run measures: `evaluation.columns` for held-out text, `evaluation.end_tasks` for end tasks.

=========  ====================  ==========================================  ====================================
columns    base model (row 0)    after domain i (row i < T)                  after the last domain (row T)
=========  ====================  ==========================================  ====================================
``own``    everything            domain i, general                           everything: all domains are seen
``seen``   everything            domains 1 … i, general                      everything
``all``    everything            everything                                  everything
=========  ====================  ==========================================  ====================================

Of T domains these are about 3 T, T²/2 and T² cells. What was learnt and forgotten follows from each of them; forward
transfer needs ``all`` (the score right before a domain's own stage), and the max form of forgetting sees under ``own``
the own stage and the end only. With ``learn`` there is a new last row; what the row before holds more than it would
have to is kept. What `evaluation` itself asks (`lm_eval`, `chat`) is asked at every row.
"""

from __future__ import annotations

from everlearn.config.recipe import Recipe
from everlearn.evaluation.task import KINDS, TaskConfig


def held_out_names(recipe: Recipe) -> list[str]:
    """Domains that hold something out, then the general text if it does."""
    general = [recipe.general] if recipe.general is not None else []
    return [domain.name for domain in (*recipe.domains, *general) if domain.validation]


def wanted_sets(recipe: Recipe, row: int) -> list[str]:
    """Held-out sets that are scored after `row` domains; 0 is the base model."""
    return held_out_names(recipe) if row in (0, len(recipe.domains)) else sets_inside(recipe, row)


def sets_inside(recipe: Recipe, index: int) -> list[str]:
    """Held-out sets that are scored inside the stage of domain `index` (`evaluation.every`)."""
    if recipe.evaluation.columns == "all":
        return held_out_names(recipe)
    domains = [domain.name for domain in recipe.domains]
    unwanted = {*domains[index:], *(domains[: index - 1] if recipe.evaluation.columns == "own" else [])}
    return [name for name in held_out_names(recipe) if name not in unwanted]


def tasks_inside(recipe: Recipe) -> list[TaskConfig]:
    """End tasks that can be asked inside a stage (`evaluation.tasks_every`): those that fine-tune nothing."""
    return [task for task in recipe.end_tasks if not KINDS[task.kind].fine_tunes]


def wanted_tasks(recipe: Recipe, row: int) -> list[TaskConfig]:
    """End tasks that are measured after `row` domains."""
    last, always = len(recipe.domains), recipe.evaluation.always()
    if row in (0, last) or recipe.evaluation.end_tasks == "every":
        return list(recipe.tasks)
    if recipe.evaluation.end_tasks == "final":
        return list(always)
    return [*(task for task in recipe.end_tasks if task.domain == recipe.domains[row - 1].name), *always]
