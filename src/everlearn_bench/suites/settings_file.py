"""The settings file of ``everlearn bench``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from everlearn.config.reading import read_yaml
from everlearn.errors import MethodError, RecipeError, RunError, did_you_mean
from everlearn.methods import build, names
from everlearn.options import wrong_value
from everlearn_bench.suites.settings import EndTaskSettings, PromptSettings, Settings, StreamSettings


def load_settings(path: Path | None, **changes: Any) -> Settings:
    """Read a settings file.

    Args:
        path: the YAML file; None for none.
        changes: keys that replace the file's; None leaves it as it is. `steps` and `budget_tokens` replace each other.

    Raises:
        RecipeError: the file is missing, is no YAML, or a key or value is not allowed.
        MethodError: a method or an option of `methods` is unknown.
    """
    raw: Any = {}
    if path is not None:
        raw = read_yaml(path, "settings file")
        if isinstance(raw.get("model"), str) and (path.parent / raw["model"]).is_dir():
            raw["model"] = str(path.parent / raw["model"])
    changes = {key: value for key, value in changes.items() if value is not None}
    for key, other in (("steps", "budget_tokens"), ("budget_tokens", "steps")):
        if key in changes:
            raw.pop(other, None)
    try:
        settings = Settings.model_validate(raw | changes)
    except ValidationError as error:
        raise RecipeError(_sentence(error)) from None
    for name in settings.methods:
        if name not in names():
            raise MethodError(f"`methods` names '{name}', no method.{did_you_mean(name, names())}")
        build(settings.spec(name))
    return settings


_GROUPS: dict[Any, type[BaseModel]] = {
    "stream": StreamSettings,
    "end_tasks": EndTaskSettings,
    "prompts": PromptSettings,
}


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        group = _GROUPS[first["loc"][0]] if len(first["loc"]) > 1 else Settings
        return f"Unknown key `{key}` in the settings.{did_you_mean(str(first['loc'][-1]), group.model_fields)}"
    return f"`{key}` in the settings: {wrong_value(first)}."


def as_measured(settings: Settings, kept: Mapping[str, Any]) -> Settings:
    """Return the settings with the stream that cells were measured on.

    Args:
        settings: what else is set.
        kept: of a cell (:func:`everlearn.grid.identity.identity`).

    Raises:
        RunError: the cell's settings are of another version.
    """
    try:
        own = Settings.model_validate({"stream": kept.get("stream")})
    except ValidationError as error:
        raise RunError(f"The results have `stream` settings of another version: {_sentence(error)}") from None
    return settings.model_copy(update={"stream": own.stream})
