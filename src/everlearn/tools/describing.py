"""What everlearn says about itself: the methods' capability table, the recipe's JSON Schema, a commented recipe.

All of it is read from the classes (their fields, docstrings and declared needs), so it cannot fall behind them.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from everlearn.config.arguments import REFUSED, RUN_WIDE
from everlearn.config.recipe import Data, Evaluation, Recipe, ReportSettings, RunSettings
from everlearn.data.corpus import Corpus, Domain
from everlearn.data.endtask import EndTask
from everlearn.evaluation import CONFIGS
from everlearn.methods import build, names
from everlearn.methods.base import REVEALS, VARIANTS
from everlearn.methods.sequential import PLAIN
from everlearn.model.source import Model

CAPABILITIES = {
    "old_data": "Old data",
    "domain_id_training": "Domain id in training",
    "domain_id_test": "Domain id at test",
    "extra_parameters": "Extra parameters",
    "importance_pass": "Extra passes",
    "peft": "With PEFT",
}
"""Columns of the capability table: field of :class:`~everlearn.methods.base.Needs` to heading."""


# -- methods --------------------------------------------------------------------------------------------------


def describe_all() -> list[dict[str, Any]]:
    """Every method and variant: plain training first, then by name."""
    described = [describe(name) for name in names()]
    return sorted(described, key=lambda entry: (bool(entry["paper"]), entry["name"]))


def describe(name: str) -> dict[str, Any]:
    """One method or variant: what it is, what it needs, its options with their defaults.

    Raises:
        MethodError: there is no such method.
    """
    made = build(name)
    variant = VARIANTS[name][1] if name in VARIANTS else None
    changed = variant.options if variant is not None else {}
    return {
        "name": made.label,
        "variant_of": made.name if variant is not None else None,
        "title": made.title,
        "paper": made.paper,
        "kinds": list(made.kinds),
        "description": inspect.cleandoc(type(made).__doc__ or "") if variant is None else variant.description,
        "needs": {
            field.name: sorted(value) if isinstance(value := getattr(made.needs, field.name), frozenset) else value
            for field in dataclasses.fields(made.needs)
        },
        "memory": made.needs.keeps,
        "reveals": REVEALS[made.needs.keeps],
        "options": [
            option | ({"default": changed[option["name"]]} if option["name"] in changed else {})
            for option in options(type(made).Config)
        ],
    }


def options(config: type[BaseModel]) -> list[dict[str, Any]]:
    """A configuration's fields: name, type, default, whether it is required, meaning."""
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
                "description": " ".join((field.description or "").split()),
            }
        )
    return described


_BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}


def _type(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """A JSON Schema type in a few words: "number, ≥ 0", "update | gradient", "text or null"."""
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
    """JSON Schema (draft 2020-12) of a recipe: the groups, each method's options, the names of TrainingArguments."""
    whole = Recipe.model_json_schema()
    properties, definitions = whole["properties"], whole["$defs"]
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
    properties["train"] = _training_schema(properties["train"])
    own_arguments = definitions["Domain"]["properties"]
    own_arguments["train"] = _training_schema(own_arguments["train"], RUN_WIDE)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "title": "everlearn recipe"}


def _described(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key in ("default", "description", "title")}


def _choices(entry: Mapping[str, Any]) -> list[Any]:
    return list(entry["anyOf"]) if "anyOf" in entry else [{"$ref": entry["$ref"]}]


def _training_schema(entry: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    from transformers import TrainingArguments

    properties = {}
    for field in sorted(dataclasses.fields(TrainingArguments), key=lambda field: field.name):
        if field.init and field.name not in REFUSED and field.name not in without:
            text = field.metadata.get("help")
            properties[field.name] = {"description": " ".join(str(text).split())} if text else {}
    return {**entry, "type": "object", "properties": properties, "additionalProperties": False}


# -- a recipe to start from -----------------------------------------------------------------------------------

RECOMMENDED: tuple[dict[str, Any], ...] = (
    {
        "name": "mas",
        "protect_base": True,
        "samples": 50,
        "normalise": "mean",
        "anchor": "separate",
        "follow": 0.4,
        "strength": 0.0215,
    },
)
"""What `everlearn init` writes as `method`: methods with their options, as a recipe has them. It is what
docs/results/frontier.json recommends."""
_WHY = (
    "This one came nearest to learning all and forgetting a quarter, of earlier domains and of general text, on four "
    "domains of a small causal model and four of a small masked one, at equal compute and without old text; there it "
    "was trained at 3.5 times plain training's learning rate, with `general` set."
)
_EXAMPLE: dict[str, dict[str, Any]] = {
    "model": {"path": "FacebookAI/roberta-base"},
    "domains": {"name": "reviews", "path": "data/reviews.jsonl"},
    "general": {"path": "data/general.txt"},
    "end_tasks": {"name": "stars", "train": "data/stars-train.jsonl", "test": "data/stars-test.jsonl"},
    "train": {"max_steps": 1000, "per_device_train_batch_size": 16, "learning_rate": 1e-4, "warmup_steps": 50},
    "run": {"name": "first"},
}
"""Values that a person must set, or that are worth showing; every other key is written with its default."""
_WIDTH = 110


def commented_recipe() -> str:
    """A recipe with every key: those to edit first are set, every other one is a comment with its default."""
    parts = [
        "# A recipe for everlearn. To check it: everlearn validate FILE. To see what it costs: everlearn plan FILE.",
        "# To launch it: everlearn run FILE [key=value ...]. Local paths are seen from where everlearn is started.",
        "",
        _group("model", Model),
        _group("domains", Domain, listed=True),
        _methods(),
        _choice("objective"),
        _group("general", Corpus, active=False),
        _group("end_tasks", EndTask, listed=True, active=False),
        _group("data", Data),
        _training(),
        _choice("optimizer"),
        _group("evaluation", Evaluation),
        _group("report", ReportSettings),
        _group("run", RunSettings),
    ]
    return "\n".join(parts)


def _comment(text: str | None, indent: str = "") -> list[str]:
    words = " ".join((text or "").split())
    return [f"{indent}# {line}" for line in textwrap.wrap(words, _WIDTH - len(indent))]


def _group(key: str, model: type[BaseModel], listed: bool = False, active: bool = True) -> str:
    """A top-level key and its fields, those that the example sets first.

    Taking away the leading "# " of a commented line, or of every line of a commented group, sets it.
    """
    shown = _EXAMPLE.get(key, {})
    lines, indent = [f"{key}:"], "    " if listed else "  "
    for position, name in enumerate(sorted(model.model_fields, key=lambda name: (name not in shown, name != "name"))):
        field = model.model_fields[name]
        default = None if field.is_required() else field.default
        dash = listed and position == 0
        lines += _comment(field.description, "  " if dash else indent)
        set_here = "" if name in shown else "# "
        lines.append(f"{'  - ' if dash else indent}{set_here}{name}: {value_text(shown.get(name, default))}")
    if not active or not shown:
        lines = [f"# {line}" for line in lines]
    return "\n".join([*_comment(Recipe.model_fields[key].description), *lines]) + "\n"


def _choice(key: str) -> str:
    field = Recipe.model_fields[key]
    return "\n".join([*_comment(field.description), f"# {key}: {value_text(field.default)}"]) + "\n"


def _methods() -> str:
    lines = [*_comment(f"{Recipe.model_fields['method'].description} `everlearn methods NAME` explains each.")]
    for entry in describe_all():
        given = ", ".join(f"{option['name']}: {value_text(option['default'])}" for option in entry["options"])
        text = f"{{name: {entry['name']}{', ' if given else ''}{given}}}"
        text = text.replace(": ", ":\u00a0")  # a key stays on one line with its value
        wrapped = textwrap.wrap(text, _WIDTH, initial_indent="#   ", subsequent_indent="#     ", break_long_words=False)
        lines += [line.replace("\u00a0", " ") for line in wrapped]
    return "\n".join([*lines, *_comment(_WHY), f"method: {method_text(RECOMMENDED)}"]) + "\n"


def method_text(methods: Sequence[Mapping[str, Any]]) -> str:
    """Methods as a recipe has them, on one line and as short as it can be."""
    each = [dict(method) if len(method) > 1 else method["name"] for method in methods]
    shown = yaml.safe_dump(each[0] if len(each) == 1 else each, default_flow_style=True, sort_keys=False, width=1000)
    return str(shown).strip().removesuffix("...").strip()


def _training() -> str:
    lines = [*_comment(Recipe.model_fields["train"].description), "train:"]
    lines += [f"  {name}: {value_text(value)}" for name, value in _EXAMPLE["train"].items()]
    return "\n".join(lines) + "\n"


def value_text(value: Any) -> str:
    """A value as a recipe writes it."""
    if isinstance(value, float):
        return f"{value:g}" if "e" not in f"{value:g}" else f"{value!r}"
    if isinstance(value, str):
        return str(yaml.safe_dump(value, default_flow_style=True, width=1000).strip().removesuffix("...").strip())
    return json.dumps(value)
