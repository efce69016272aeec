"""Check the objective of a recipe before its text is made: suites build their text when its path is resolved."""

from __future__ import annotations

import functools
import json
from typing import Any

from pydantic import ValidationError

from everlearn.errors import EverlearnError
from everlearn.model.loading import load_config
from everlearn.model.objectives import OBJECTIVES
from everlearn.model.options import Model
from everlearn.model.structure import kind_of_config


def check_objective(raw: Any, objective: Any) -> None:
    """Check an objective by the configuration of the model alone; what else is wrong with either is found later.

    Args:
        raw: the `model` of a recipe: its path, or its group.
        objective: the `objective` of the recipe.

    Raises:
        ModelError: the objective does not support this kind of model.
    """
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        return
    if known := _kind_and_name(json.dumps({"path": raw} if isinstance(raw, str) else raw, default=str)):
        OBJECTIVES[objective].check_kind(*known)


@functools.cache  # a grid makes many recipes with one model, which may be on the hub
def _kind_and_name(model: str) -> tuple[str, str] | None:
    """Return the kind of a model and the name of its class; None if there is no such model."""
    try:
        config = load_config(Model.model_validate_json(model))
        return kind_of_config(config), next(iter(config.architectures or ()), config.model_type)
    except (EverlearnError, ValidationError):
        return None
