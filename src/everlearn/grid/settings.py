"""The settings file of ``everlearn bench``, and what must be equal for two cells to stand in one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from everlearn.config.reading import read_yaml
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Domain
from everlearn.data.documents import corpus_fingerprint
from everlearn.errors import MethodError, RecipeError, RunError, did_you_mean
from everlearn.files import digest
from everlearn.methods import build, names
from everlearn.model.loading import check_complete
from everlearn.options import wrong_value
from everlearn.suites import EndTaskSettings, Settings, StreamSettings, Suite
from everlearn.suites.settings import PromptSettings


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
    """Settings with the stream that cells were measured on.

    Args:
        settings: what else is set.
        kept: of a cell (:func:`identity`).

    Raises:
        RunError: the cell's settings are of another version.
    """
    try:
        own = Settings.model_validate({"stream": kept.get("stream")})
    except ValidationError as error:
        raise RunError(f"The results have `stream` settings of another version: {_sentence(error)}") from None
    return settings.model_copy(update={"stream": own.stream})


def identity(settings: Settings, suite: Suite, recipe: Recipe) -> dict[str, Any]:
    """What must be equal for two cells to stand in one table: the settings, and the contents of model and data.

    Defaults are left out, so that a key which a later version adds does not make old cells useless; so are the
    methods' own options, which each cell keeps.
    """
    known = settings.model_dump(mode="json", exclude_defaults=True, exclude={"methods", "entries", "model", "corpora"})
    general = [recipe.general] if recipe.general is not None else []
    return (
        known
        | suite.facts()
        | {
            "model": _model(str(recipe.model.path), recipe.model.revision),
            "corpora": {domain.name: _corpus(domain) for domain in (*recipe.domains, *general)},
            "end_task_files": {task.name: [digest(file) for file in task.files()] for task in recipe.end_tasks},
        }
    )


def _model(path: str, revision: str | None) -> str:
    """A hub id, or a folder's name and the digests of its weights: it may lie elsewhere on another machine."""
    folder = Path(path)
    if not folder.is_dir():
        return f"{path}@{revision}" if revision else path
    check_complete(folder)
    weights = sorted(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin"))
    return " ".join([folder.resolve().name, *(digest(file)[:12] for file in weights)])


def _corpus(domain: Domain) -> list[str]:
    held_out = domain.held_out_corpus
    own = [corpus_fingerprint(corpus) for corpus in (domain, held_out) if corpus is not None]
    return [*own, str(domain.held_out_share)] if domain.held_out_share else own
