"""Parts of a recipe that a user lays over the template of a suite: ``--settings FILE`` and ``key=value``."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from everlearn.config.overrides import SHORT
from everlearn.config.reading import read_value, read_yaml
from everlearn.errors import MethodError, RecipeError, did_you_mean
from everlearn.grid.template import GridSettings
from everlearn.methods import build, names
from everlearn.options import Options, wrong_key

NAMED = ("domains", "end_tasks")
"""Lists of a recipe; an overlay has a mapping instead: name (or `*`, for each item) → keys."""
OWN_TEXT = ("path", "sources")
"""Keys with which a domain is a user's own text: the suite's files, and its held-out text, are dropped."""
ELSEWHERE = {
    "method": "name the methods in `--methods`, and their options in `grid.methods`",
    "run": "`--seeds`, `--results` and `--runs` set these keys",
}


@dataclass(frozen=True)
class Overlay:
    """The changes of a user to a suite's template.

    Attributes:
        recipe: keys of the recipe, nested.
        grid: options of methods and of single rows.
        suite: keys of the suite's own (`Suite.Config`).
        tokens: tokens per domain, instead of `train.max_steps`.
    """

    recipe: Mapping[str, Any] = field(default_factory=dict)
    grid: GridSettings = field(default_factory=GridSettings)
    suite: Mapping[str, Any] = field(default_factory=dict)
    tokens: int | None = None


def read_overlay(
    path: Path | None = None, overrides: Iterable[str] = (), *, model: str | None = None, tokens: int | None = None
) -> Overlay:
    """Read an overlay.

    Args:
        path: a YAML file; None for none.
        overrides: `key=value`, which override the file.
        model: the base model, instead of the file's.
        tokens: tokens per domain, instead of steps.

    Raises:
        RecipeError: the file is missing or no YAML, or a key or value is not allowed.
        MethodError: a method or an option of `grid.methods` is unknown.
    """
    raw = read_yaml(path, "settings file") if path is not None else {}
    configured = raw.get("model")
    place = configured.get("path") if isinstance(configured, Mapping) else configured
    if path is not None and isinstance(place, str) and (path.parent / place).is_dir():
        _put(raw, ("model", "path") if isinstance(configured, Mapping) else ("model",), str(path.parent / place))
    for text in overrides:
        _set(raw, text)
    if model is not None:
        raw["model"] = model
    return overlay_of(raw, tokens)


def overlay_of(raw: Mapping[str, Any], tokens: int | None = None) -> Overlay:
    """Return plain data as an overlay; errors as of :func:`read_overlay`."""
    raw = dict(raw)
    for key in raw:
        if key in ELSEWHERE:
            raise RecipeError(f"`{key}` cannot be set for a grid: {ELSEWHERE[key]}.")
    grid = typed(GridSettings, raw.pop("grid", None) or {}, "grid")
    for name in grid.methods:
        if name not in names():
            raise MethodError(f"`grid.methods` names '{name}', no method.{did_you_mean(name, names())}")
        build(grid.spec(name))
    own = raw.pop("suite", None) or {}
    if not isinstance(own, Mapping):
        raise RecipeError(f"`suite` in the settings must be a mapping of keys to values (got {own!r}).")
    return Overlay(raw, grid, own, tokens)


def _set(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"\w[\w-]*(\.(\*|[\w+-]+))*", key):
        raise RecipeError(f"'{text[:80]}' is no override: write key=value, for example train.max_steps=100.")
    _put(raw, key.split("."), read_value(value, key) if value else None)


def _put(raw: dict[str, Any], place: Sequence[str], value: Any) -> None:
    *parents, last = place
    for part in parents:
        if isinstance(raw.get(part), str) and part in SHORT:
            raw[part] = {SHORT[part]: raw[part]}
        raw = raw.setdefault(part, {})
        if not isinstance(raw, dict):
            raise RecipeError(f"`{'.'.join(place)}`: there is nothing below `{part}`.")
    raw[last] = value


O = TypeVar("O", bound=Options)  # noqa: E741 - a type variable


def typed(cls: type[O], raw: Mapping[str, Any], group: str) -> O:
    """Return a group of an overlay as its class.

    Raises:
        RecipeError: a key is unknown, or a value is not allowed.
    """
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(wrong_key(cls, error, (group,), " in the settings")) from None


def lay_over(raw: dict[str, Any], overlay: Mapping[str, Any]) -> None:
    """Change a recipe in place: mappings are merged, other values replaced.

    Args:
        raw: the recipe as plain data, with all its domains and end tasks.
        overlay: keys of the recipe; `domains` and `end_tasks` by name or `*`. Null leaves one, or all, out.

    Raises:
        RecipeError: there is no such domain or end task.
    """
    for key, value in overlay.items():
        if key in NAMED:
            _lay_named(raw.setdefault(key, []), value, key)
        elif key in SHORT:
            there, part = ({SHORT[key]: each} if isinstance(each, str) else each for each in (raw.get(key), value))
            raw[key] = part if key == "model" and isinstance(value, str) else _laid(there or {}, part)
        else:
            raw[key] = _laid(raw.get(key), value)


def _lay_named(items: list[dict[str, Any]], parts: Any, group: str) -> None:
    known = {item["name"]: item for item in items}
    if not parts:
        items.clear()
        return
    if not isinstance(parts, Mapping):
        raise RecipeError(f"`{group}` in the settings must be a mapping of names (or `*`) to keys (got {parts!r:.80}).")
    for name in sorted(parts, key=lambda name: name != "*"):  # a name overrides the wildcard
        if name != "*" and name not in known:
            raise RecipeError(
                f"`{group}.{name}` in the settings: the suite has {', '.join(known) or 'none'}, or `{group}.*` for all."
                f"{did_you_mean(name, known)}"
            )
        if parts[name] is None and name != "*":
            items.remove(known[name])
            continue
        if not isinstance(parts[name], Mapping):
            raise RecipeError(f"`{group}.{name}` in the settings must be a mapping of keys (got {parts[name]!r:.80}).")
        for item in items if name == "*" else [known[name]]:
            laid = _laid(item, parts[name])
            item.clear()
            item.update(laid)


def _laid(there: Any, part: Any) -> Any:
    """Return a value with a part laid over it."""
    if not isinstance(there, Mapping) or not isinstance(part, Mapping):
        return copy.deepcopy(part)
    own = any(key in part for key in OWN_TEXT)
    kept = {key: value for key, value in there.items() if not (own and key in (*OWN_TEXT, "validation"))}
    return kept | {key: _laid(kept.get(key), value) for key, value in part.items()}
