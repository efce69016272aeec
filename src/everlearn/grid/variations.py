"""Read the rows of a sweep: methods with their options, times the changes of `--set`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from everlearn import wording
from everlearn.config.overrides import put
from everlearn.config.reading import read_value
from everlearn.config.recipe import parse
from everlearn.data.blocks import hash_of
from everlearn.errors import RecipeError, did_you_mean
from everlearn.grid import arrangements
from everlearn.grid.recipe_template import RecipeTemplate, read_list
from everlearn.grid.rows import ARRANGEMENTS, RowSpec, resolve
from everlearn.grid.runs import without_training
from everlearn.methods import build

_LONGEST = 80
_ELSEWHERE = {
    "method": "name the methods in `--methods`, and an option of one as in method.ewc.strength=1,10",
    "run": "`--seeds`, `--results` and `--runs` set it",
}


def read_variations(methods: str | None, sets: Sequence[str], template: RecipeTemplate) -> list[RowSpec]:
    """Return the rows of a sweep.

    Args:
        methods: methods separated by commas: a name, `name:option=value` (further options after further colons), a
            mapping as in a recipe, a list in square brackets of methods that are combined, or a group of the template.
            None for the recipe's own methods.
        sets: `key=value,value` each; every combination is tried with every method. An option of a method,
            `method.NAME.option=value,value`, is tried in the rows that have the method.
        template: template of the recipe.

    Raises:
        RecipeError: an option cannot be read, or a key is not allowed.
        MethodError: a method or one of its options is unknown.
    """
    items = read_list("--methods", methods) if methods is not None else [[each["name"] for each in template.own.method]]
    items = [
        each for item in items for each in (template.groups.get(item, (item,)) if isinstance(item, str) else (item,))
    ]
    changes = [_changes(text, template) for text in sets]
    keys = [key for key, _ in changes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise RecipeError(f"`--set` has `{twice}` more than once. Give all its values at once, separated by commas.")
    combinations = [[_part(each, template) for each in (item if isinstance(item, list) else [item])] for item in items]
    having = [entry.name for parts in combinations for entry, _ in parts]
    for key in keys:
        if key.startswith("method.") and (name := key.split(".")[1]) not in having:
            raise RecipeError(f"`--set` has `{key}`, but no entry has '{name}'.{did_you_mean(name, having)}")
    rows: dict[str, RowSpec] = {}
    for parts in combinations:
        for values in itertools.product(*(values for _, values in changes)):
            tried = dict(zip(keys, values, strict=True))
            own = [(entry, {**options, **_of_method(entry.name, tried)}) for entry, options in parts]
            one = _changed(_entry(own, template), {k: v for k, v in tried.items() if not k.startswith("method.")})
            if rows.setdefault(one.name, one) != one:  # two values that look the same in a file name
                one = replace(one, name=f"{one.name}-{hash_of(one.methods, one.changes)[:8]}")
                rows.setdefault(one.name, one)
    return list(rows.values())


def _of_method(name: str, tried: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that `--set method.NAME.option` gives a method."""
    return {key.split(".", 2)[2]: value for key, value in tried.items() if key.startswith(f"method.{name}.")}


def _entry(parts: Sequence[tuple[RowSpec, dict[str, Any]]], template: RecipeTemplate) -> RowSpec:
    """Return the row of one method, or of several that are combined."""
    if not parts:
        raise RecipeError("`--methods` has an empty list: name the methods that work together.")
    if len(parts) == 1 and parts[0][0].name in ARRANGEMENTS:
        return parts[0][0]
    names, titles = [], []
    for entry, options in parts:
        if entry.name in ARRANGEMENTS:
            raise RecipeError(f"`--methods` combines '{entry.name}' with methods, but it is not a method.")
        settings = [f"{key} {wording.value(value)}" for key, value in options.items()]
        names.append("-".join([entry.name, *(f"{key}{_slug(value)}" for key, value in options.items())]))
        titles.append(f"{entry.title} ({', '.join(settings)})" if settings else entry.title)
    specs = tuple({"name": entry.name, **options} for entry, options in parts)
    for spec in specs:
        build(template.settings.spec(spec["name"]) | spec)  # report errors in options now
    return RowSpec(_short("-".join(names)), " + ".join(titles), parts[0][0].paper, arrangements.stream, specs)


def _part(word: Any, template: RecipeTemplate) -> tuple[RowSpec, dict[str, Any]]:
    """Return a method, or an arrangement of training, and its options."""
    if isinstance(word, Mapping) and "name" in word:
        name, options = word["name"], {key: value for key, value in word.items() if key != "name"}
    elif isinstance(word, str):
        name, *settings = word.split(":")
        options = {}
        for text in settings:
            key, equals, value = text.partition("=")
            if not equals or not key or not value:
                raise RecipeError(f"`--methods` has '{word}'; an option is given as in ewc:strength=10.")
            options[key] = read_value(value, f"--methods {name}:{key}")
    else:
        raise RecipeError(f"`--methods` has {word!r}, which is neither a method's name nor a mapping with a `name`.")
    entry = resolve([str(name)], template)[0]
    if options and entry.name in ARRANGEMENTS:
        raise RecipeError(f"`--methods` gives '{entry.name}' the option '{next(iter(options))}', but it has none.")
    return entry, options


def _changes(text: str, template: RecipeTemplate) -> tuple[str, list[Any]]:
    """Return a key and its values, each of which is tried on the recipe."""
    key, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.*-]+", key):
        raise RecipeError(f"`--set` is '{text}', but must look like train.learning_rate=1e-4,3e-4.")
    group, *inside = key.split(".")
    if group == "method" and len(inside) >= 2:
        return key, read_list("--set", values)  # tried when the rows are made
    if group in _ELSEWHERE:
        raise RecipeError(f"`--set` cannot change `{key}`: {_ELSEWHERE[group]}.")
    if group in ("domains", "end_tasks"):
        if group == "end_tasks" and not template.own.end_tasks:
            raise RecipeError(f"`--set` cannot change `{key}`: the recipe has no end tasks.")
        names = ("*", *(template.domains if group == "domains" else (task.name for task in template.own.end_tasks)))
        if len(inside) < 2 or inside[0] not in names or inside[1] in ("name", "domain"):
            near = did_you_mean(inside[0], names) if inside and inside[0] not in names else ""
            example = "max_documents" if group == "domains" else "max_train"
            raise RecipeError(
                f"`--set` cannot change `{key}`. In `{group}` it changes single keys, as in "
                f"{group}.{(*names[1:], 'NAME')[0]}.{example}=100,200.{near}"
            )
    value_list = read_list("--set", values)
    for value in value_list:
        raw = template.own.model_dump(mode="json")
        put(raw, key, value)
        parse(raw)
    return key, value_list


def _changed(entry: RowSpec, changes: Mapping[str, Any]) -> RowSpec:
    """Return the row with changes of the recipe; changes of the training make no difference to the base model."""
    own = changes if entry.seeded else without_training(changes)
    if not own:
        return entry
    shown_changes = {key.removeprefix("train."): value for key, value in own.items()}
    name = "-".join([entry.name, *(f"{key.replace('*', 'all')}{_slug(value)}" for key, value in shown_changes.items())])
    title = f"{entry.title} · {', '.join(f'{key} {wording.value(value)}' for key, value in shown_changes.items())}"
    return replace(entry, name=_short(name), title=title, changes=own)


def _slug(value: Any) -> str:
    """Return a value for a file name; a hash is added if characters had to be replaced or cut off."""
    text = str(value)
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("_.")
    return safe if safe == text and len(safe) <= 24 else f"{safe[:24]}-{hash_of(text)[:6]}"


def _short(name: str) -> str:
    """Return a name that is short enough for a file name with order and seed."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 9]}-{hash_of(name)[:8]}"
