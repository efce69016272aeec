"""The keys that may be set when a finished run learns another domain."""

from __future__ import annotations

from collections.abc import Sequence

from everlearn.config.arguments import RUN_WIDE
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Domain
from everlearn.errors import RecipeError, did_you_mean

FIXED = {
    "model": "the domain is learnt by the run's last model",
    "data": "the rows and held-out text of all domains are made with the same settings",
    "method": "the method's memory of the earlier domains depends on its options",
    "objective": "the earlier domains were learnt with it",
    "optimizer": "the earlier domains were learnt with it",
    "evaluation": "the new scores could not be compared with the earlier ones",
    "general": "the earlier scores were measured on the previous text",
    "report": "the run is judged as a whole; `everlearn report --tolerate` judges it by another number",
    "run": "it was decided when the run began",
}
"""Groups that are the same for a whole run, and why."""


def check_later_key(key: str, domain: str, tasks: Sequence[str], run: str) -> None:
    """Refuse a key that belongs to the whole run, or to an existing domain or task.

    Args:
        key: the dotted key to set.
        domain: name of the new domain.
        tasks: names of the end tasks that are added with it.
        run: the run folder, for the error message.

    Raises:
        RecipeError: the key cannot be set for a domain that is learnt later.
    """
    group, *inside = key.split(".")
    named = {"domains": [domain], "end_tasks": tasks}
    if group == "train" and inside and inside[0] not in RUN_WIDE:
        return
    if group in named and len(inside) > 1 and inside[0] in named[group]:
        return
    if group in Domain.model_fields and not inside:
        raise RecipeError(f"Unknown key `{key}`. For the domain, write `domains.{domain}.{key}=…`.")
    if group not in Recipe.model_fields:
        raise RecipeError(f"Unknown key `{key}`.{did_you_mean(group, Recipe.model_fields)}")
    if group in named or key == "train":
        own = "".join(f", end_tasks.{task}.…=…" for task in tasks[:1])
        raise RecipeError(
            f"`{key}` cannot be set for a domain that is learnt later: set train.…=…, domains.{domain}.…=…{own}; "
            "earlier domains and their tasks stay as they are."
        )
    why = "it sets up the processes of the whole run" if group == "train" else FIXED[group]
    raise RecipeError(
        f"`{key}` cannot change in the middle of a run: {why}. A new run may begin with this one's last model: set its "
        f"`model.path` to the last stage folder in {run}."
    )
