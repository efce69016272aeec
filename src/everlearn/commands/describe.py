"""Generate the methods' capability table and the recipe's JSON Schema.

Both are generated from the classes (their fields, docstrings and declared needs), so they are never out of date. This
loads torch and transformers, so commands that only show them read saved tables
(:mod:`everlearn.commands.saved_tables`), which are written by

    python -m everlearn.commands.describe
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from everlearn import files, plugins
from everlearn.commands.saved_tables import METHODS, RECIPE, with_arguments
from everlearn.config.arguments import REFUSED, RUN_WIDE
from everlearn.config.recipe import Recipe
from everlearn.evaluation import CONFIGS
from everlearn.methods import build, names
from everlearn.methods.base import REVEALS, VARIANTS
from everlearn.methods.sequential import PLAIN

# -- methods --------------------------------------------------------------------------------------------------


def describe_all() -> list[dict[str, Any]]:
    """Return every method and variant, including those of plugins: plain training first, then by name."""
    described = [describe(name) for name in names()]
    return sorted(described, key=lambda entry: (bool(entry["paper"]), entry["name"]))


def describe(name: str) -> dict[str, Any]:
    """Describe a method or variant: what it is, what it needs, its options with their defaults.

    Raises:
        MethodError: there is no such method.
    """
    method = build(name)
    variant = VARIANTS[name][1] if name in VARIANTS else None
    changed = variant.options if variant is not None else {}
    return {
        "name": method.label,
        "variant_of": method.name if variant is not None else None,
        "title": method.title,
        "class": f"{type(method).__module__}.{type(method).__qualname__}",
        "summary": method.summary if variant is None else "",
        "in_das_paper": list(method.in_das_paper) if variant is None else [],
        "paper": method.paper,
        "kinds": list(method.kinds),
        "description": without_roles(
            inspect.cleandoc(type(method).__doc__ or "") if variant is None else variant.description
        ),
        "needs": {
            field.name: sorted(value) if isinstance(value := getattr(method.needs, field.name), frozenset) else value
            for field in dataclasses.fields(method.needs)
        },
        "memory": method.needs.keeps,
        "reveals": REVEALS[method.needs.keeps],
        "options": [
            option | ({"default": changed[option["name"]]} if option["name"] in changed else {})
            for option in options(type(method).Config)
        ],
    }


def without_roles(text: str) -> str:
    """Return a docstring with the names that its roles refer to: ":class:`~a.b.C`" becomes "`C`"."""
    return re.sub(r":\w+:`(?:~[\w.]*\.)?([^`]+)`", r"`\1`", text)


def options(config: type[BaseModel]) -> list[dict[str, Any]]:
    """Describe a configuration's fields: name, type, default, whether it is required, meaning."""
    schema = config.model_json_schema()
    described = []
    for name, field in config.model_fields.items():
        own = schema["properties"][name]
        default = own.get("default")
        described.append(
            {
                "name": name,
                "type": _type(own, schema.get("$defs", {})),
                "default": default,
                "required": field.is_required(),
                "description": without_roles(" ".join((field.description or "").split())),
            }
        )
    return described


_BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Describe a JSON Schema type in a few words: "number, ≥ 0", "update | gradient", "text or null"."""
    if "$ref" in schema:
        return _type(definitions[str(schema["$ref"]).rsplit("/", 1)[1]], definitions)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(choice, definitions) for choice in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        items = schema.get("items") or {}
        return f"list of {_type(items, definitions)}" if items else "list"
    word = {"string": "text", "boolean": "true | false", "integer": "whole number", "object": "mapping"}
    kind = word.get(str(schema.get("type")), str(schema.get("type", "anything")))
    return ", ".join([kind, *(text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema)])


# -- the recipe -----------------------------------------------------------------------------------------------


def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a recipe: groups, options of methods, names of TrainingArguments."""
    from transformers import TrainingArguments

    arguments = {each.name: each.metadata.get("help") for each in dataclasses.fields(TrainingArguments) if each.init}
    return with_arguments(_schema(), arguments, REFUSED, RUN_WIDE)


def _schema() -> dict[str, Any]:
    """Return the schema without the names of TrainingArguments, which depend on the version of transformers."""
    recipe_schema = Recipe.model_json_schema()
    properties, definitions = recipe_schema["properties"], recipe_schema["$defs"]
    choices = []
    for entry in names():
        described, config = describe(entry), type(build(entry)).Config
        own = config.model_json_schema()
        definitions |= own.pop("$defs", {})
        own["title"], own["description"] = described["title"], described["description"].split("\n\n")[0]
        defaults = {option["name"]: option["default"] for option in described["options"]}
        for key, value in own.get("properties", {}).items():
            if "default" in value:
                value["default"] = defaults[key]
        own["properties"] = {"name": {"const": entry, "type": "string"}, **own.get("properties", {})}
        own["required"] = ["name", *own.get("required", [])]
        definitions[f"method_{entry}"] = own
        choices.append({"$ref": f"#/$defs/method_{entry}"})
    union = {"oneOf": choices, "discriminator": {"propertyName": "name"}}
    named = {"enum": names(), "type": "string"}
    definitions["Method"] = {"anyOf": [named, union]}
    one = {"$ref": "#/$defs/Method"}
    properties["method"] = {
        "anyOf": [one, {"type": "array", "items": one, "minItems": 1}],
        "default": PLAIN,
        "description": "A method's name, a mapping of `name` and options, or a list of those that work together.",
    }
    for key in ("model", "general"):  # a bare path is short for {path: …}
        properties[key] = {**_described(properties[key]), "anyOf": [{"type": "string"}, *_choices(properties[key])]}
    for kind, task in CONFIGS.items():
        own = task.model_json_schema()
        definitions |= own.pop("$defs", {})
        definitions[f"end_task_{kind}"] = own
    tasks = [{"$ref": f"#/$defs/end_task_{kind}"} for kind in CONFIGS]
    properties["end_tasks"] = {**_described(properties["end_tasks"]), "type": "array", "items": {"anyOf": tasks}}
    plain = json.loads(without_roles(json.dumps(recipe_schema, ensure_ascii=False)))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **plain, "title": "everlearn recipe"}


def _described(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key in ("default", "description", "title")}


def _choices(entry: Mapping[str, Any]) -> list[Any]:
    return list(entry["anyOf"]) if "anyOf" in entry else [{"$ref": entry["$ref"]}]


def write_tables() -> None:
    """Write the tables that :mod:`everlearn.commands.saved_tables` reads, without plugins."""
    with plugins.hidden():
        methods, recipe = (
            describe_all(),
            {"refused": sorted(REFUSED), "run_wide": sorted(RUN_WIDE), "schema": _schema()},
        )
    files.write_text(METHODS, table_text(methods))
    files.write_text(RECIPE, table_text(recipe, 3))  # a line for each definition


def table_text(value: Any, levels: int = 1) -> str:
    """Return a table as JSON that breaks lines in its outer `levels` only."""
    return _lines(value, levels) + "\n"


def _lines(value: Any, levels: int) -> str:
    if not levels or not isinstance(value, list | dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(_lines(each, levels - 1) for each in value) + "\n]"
    entries = (f"{json.dumps(key)}: {_lines(each, levels - 1)}" for key, each in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"


if __name__ == "__main__":
    write_tables()
