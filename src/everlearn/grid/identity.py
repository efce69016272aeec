"""Define what must be equal for two cells of one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everlearn.comparison import formatting as fmt
from everlearn.config.arguments import DEFAULTS
from everlearn.config.recipe import Recipe
from everlearn.data.corpus import Domain
from everlearn.data.documents import corpus_fingerprint
from everlearn.files import digest
from everlearn.grid.template import GridTemplate
from everlearn.model.loading import check_complete

_PLACES = ("path", "validation", "train", "test", "tokenizer", "cache")
"""Keys that may name files. Their paths make no difference, since their contents are compared by digests."""

_DIGESTS = ("corpora", "end_task_files")
_MISSING = object()
_NAMING = ("name", "domain", "group")


def identity(template: GridTemplate, recipe: Recipe) -> dict[str, Any]:
    """Return what must be equal for two cells of one table: the recipe, and contents of model and data.

    Defaults are left out, so that a key of a later version does not invalidate old cells. Methods, order and seed are
    left out too, since each cell keeps its own.

    Args:
        template: the template, which may add facts.
        recipe: recipe of plain training on all domains.
    """
    raw = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"method", "report", "run"})
    raw["domains"] = {domain["name"]: domain for domain in raw["domains"]}
    facts = {f"recipe.{key}": _without_places(value) for key, value in raw.items()}
    general = [recipe.general] if recipe.general is not None else []
    return (
        {key: value for key, value in facts.items() if value}
        | template.facts()
        | {
            "model": _model(str(recipe.model.path), recipe.model.revision),
            "corpora": {domain.name: _corpus(domain) for domain in (*recipe.domains, *general)},
            "end_task_files": {task.name: [digest(file) for file in task.files()] for task in recipe.end_tasks},
        }
    )


def described(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the identity of cells for a reader: keys as in a recipe, without digests and without our defaults.

    A value that all domains or all end tasks share is listed once, for example as ``end_tasks.*.max_test``.
    """
    shown = {key.removeprefix("recipe."): value for key, value in facts.items() if key not in _DIGESTS}
    for group in ("domains", "end_tasks"):
        items = shown.get(group, {})
        items = list(items.values()) if isinstance(items, Mapping) else items
        if items and all("name" in item for item in items):
            first = items[0]
            same = {key for key in first if all(item.get(key, _MISSING) == first[key] for item in items)}
            own = {item["name"]: {k: v for k, v in item.items() if k not in (*same, *_NAMING)} for item in items}
            shown[group] = {"*": {key: first[key] for key in first if key in same}, **own}
    if isinstance(train := shown.get("train"), Mapping):
        shown["train"] = {key: value for key, value in train.items() if DEFAULTS.get(key) != value}
    return fmt.flatten(shown)


def where_differ(key: str, mine: Any, other: Any) -> tuple[str, Any, Any]:
    """Return the first dotted key below `key` at which two values differ, and the two values there."""
    while isinstance(mine, Mapping) and isinstance(other, Mapping):
        inside = next(each for each in sorted({*mine, *other}) if mine.get(each) != other.get(each))
        key, mine, other = f"{key}.{inside}", mine.get(inside), other.get(inside)
    return key.removeprefix("recipe."), mine, other


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in _PLACES or isinstance(each, dict | float)}
        return {key: cleaned for key, each in kept.items() if (cleaned := _without_places(each)) not in ({}, [])}
    return [_without_places(each) for each in value] if isinstance(value, list | tuple) else value


def _model(path: str, revision: str | None) -> str:
    """Return a hub id, or a folder's name with digests of its weights, since its path differs between machines."""
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
