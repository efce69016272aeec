"""Write a recipe with every key: those that are set, and all others as comments with their defaults.

The keys are read from the recipe's schema, which is made of the classes (their fields and docstrings), so none can be
missing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from everlearn.commands import known, saved_tables
from everlearn.commands.yaml_text import flow_text, method_text, rate_or_value, value_text

EXAMPLES: dict[str, dict[str, Any]] = {
    "general": {"path": "data/general.txt"},
    "end_tasks": {"name": "stars", "train": "data/stars-train.jsonl", "test": "data/stars-test.jsonl"},
    "stop": {"every": 50},
}
"""Example values of groups that the recipe does not set."""
WIDTH = 110


def with_every_key(values: Mapping[str, Any]) -> str:
    """Return a recipe as commented YAML.

    Args:
        values: keys to set, as plain data; `model` is a path, `domains` a list of mappings, `method` a list. A general
            text whose path is None is not set.
    """
    own = dict(values)
    if own.get("general", {}).get("path") is None:
        own.pop("general", None)
    schema = saved_tables.recipe_table()["schema"]
    keys = {name: _resolved(field, schema["$defs"]) for name, field in schema["properties"].items()}
    groups = {name: group.get("properties", {}) for name, group in schema["$defs"].items()}
    corpus = {name: field for name, field in groups["Source"].items() if name != "weight"}
    parts = [
        "# A recipe for everlearn. To check it: everlearn validate FILE. To see what it costs: everlearn plan FILE.",
        "# To launch it: everlearn run FILE [key=value ...]. Relative paths begin where everlearn is started.",
        "",
        _group("model", keys, groups["Model"], {"path": own["model"]}),
        _group("domains", keys, groups["Domain"], own["domains"][0], others=own["domains"][1:]),
        _methods(keys, own["method"]),
        _line("objective", keys, own.get("objective"), is_set=own.get("objective") is not None),
        _group("general", keys, corpus, own.get("general")),
        _group("end_tasks", keys, groups["end_task_classification"], None, listed=True),
        _group("data", keys, groups["Data"], own.get("data")),
        _training(keys, own["train"]),
        _line("optimizer", keys, keys["optimizer"]["default"], is_set=False),
        _group("evaluation", keys, groups["Evaluation"], own.get("evaluation")),
        _group("stop", keys, groups["Stop"], None),
        _group("report", keys, groups["ReportSettings"], own.get("report")),
        _group("run", keys, groups["RunSettings"], own["run"]),
        _line("plugins", keys, keys["plugins"]["default"], is_set=False),
    ]
    return "\n".join(parts)


def _resolved(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key of the schema; if it has no description, with that of the group that it refers to."""
    group = definitions[field["$ref"].rpartition("/")[2]] if "$ref" in field else {}
    return {"description": group.get("description"), **field}


def _comment(text: str | None, indent: str = "") -> list[str]:
    words = " ".join((text or "").split())
    return [f"{indent}# {line}" for line in textwrap.wrap(words, WIDTH - len(indent))]


def _group(
    key: str,
    keys: Mapping[str, Any],
    fields: Mapping[str, Any],
    own: Mapping[str, Any] | None,
    *,
    listed: bool = False,
    others: list[dict[str, Any]] | None = None,
) -> str:
    """Return a top-level key and its fields, those that are set first.

    A user sets a commented line, or a commented group, by removing the leading "# ".

    Args:
        key: key of the recipe.
        keys: all of them in the recipe's schema, with their descriptions.
        fields: fields of the group in the schema.
        own: the keys to set; None: the group is a comment.
        listed: the group is a list of such mappings.
        others: further items of the list.
    """
    shown = EXAMPLES.get(key, {}) if own is None else own
    listed = listed or others is not None
    lines, indent = [f"{key}:"], "    " if listed else "  "
    for position, name in enumerate(sorted(fields, key=lambda name: (name not in shown, name != "name"))):
        field = fields[name]
        dash = listed and position == 0
        lines += _comment(field.get("description"), "  " if dash else indent)
        set_here = "" if name in shown else "# "
        value = value_text(shown.get(name, field.get("default")))
        lines.append(f"{'  - ' if dash else indent}{set_here}{name}: {value}")
    lines += [f"  - {flow_text(item)}" for item in others or ()]
    if own is None:
        lines = [f"# {line}" for line in lines]
    return "\n".join([*_comment(keys[key]["description"]), *lines]) + "\n"


def _line(key: str, keys: Mapping[str, Any], value: Any, *, is_set: bool) -> str:
    sign = "" if is_set else "# "
    return "\n".join([*_comment(keys[key]["description"]), f"{sign}{key}: {value_text(value)}"]) + "\n"


def _methods(keys: Mapping[str, Any], own: list[dict[str, Any]]) -> str:
    lines = [*_comment(f"{keys['method']['description']} `everlearn methods NAME` explains each.")]
    for entry in known.methods():
        options = ", ".join(f"{option['name']}: {value_text(option['default'])}" for option in entry["options"])
        text = f"{{name: {entry['name']}{', ' if options else ''}{options}}}"
        text = text.replace(": ", ":\u00a0")  # a key stays on one line with its value
        wrapped = textwrap.wrap(text, WIDTH, initial_indent="#   ", subsequent_indent="#     ", break_long_words=False)
        lines += [line.replace("\u00a0", " ") for line in wrapped]
    return "\n".join([*lines, f"method: {method_text(own)}"]) + "\n"


def _training(keys: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    lines = [*_comment(keys["train"]["description"]), "train:"]
    return "\n".join([*lines, *(f"  {name}: {rate_or_value(name, value)}" for name, value in own.items())]) + "\n"
