"""Read the saved tables of methods and of the recipe, without importing their modules, torch or transformers.

The tables are written from the classes by ``python -m everlearn.commands.describe``; a test compares them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

METHODS = Path(__file__).with_name("methods.json")
RECIPE = Path(__file__).with_name("recipe.json")
CAPABILITIES = {
    "old_data": "Old data",
    "domain_id_training": "Domain id in training",
    "domain_id_test": "Domain id at test",
    "extra_parameters": "Extra parameters",
    "importance_pass": "Passes between domains",
    "peft": "With PEFT",
}
"""Columns of the capability table: field of :class:`~everlearn.methods.base.Needs` to heading."""


def methods() -> list[dict[str, Any]]:
    """Return the description of every method and variant: plain training first, then by name."""
    described: list[dict[str, Any]] = json.loads(METHODS.read_text(encoding="utf-8"))
    return described


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, with the names of ``TrainingArguments`` that are installed."""
    table = recipe_table()
    return with_arguments(table["schema"], _training_arguments(), table["refused"], table["run_wide"])


def recipe_table() -> dict[str, Any]:
    """Return the schema without the names of ``TrainingArguments`` (`schema`), and those that a recipe (`refused`) or a
    domain (`run_wide`) cannot set."""
    table: dict[str, Any] = json.loads(RECIPE.read_text(encoding="utf-8"))
    return table


def with_arguments(
    schema: dict[str, Any], arguments: Mapping[str, str | None], refused: Collection[str], run_wide: Collection[str]
) -> dict[str, Any]:
    """Return a recipe's schema with the arguments that `train` takes, of a run and of a domain.

    Args:
        schema: without them; it is changed.
        arguments: name → its documentation in transformers.
        refused: names that a recipe cannot set.
        run_wide: names that a domain cannot set.
    """
    for properties, without in (
        (schema["properties"], {*refused}),
        (schema["$defs"]["Domain"]["properties"], {*refused, *run_wide}),
    ):
        names = {
            name: {"description": " ".join(text.split())} if text else {}
            for name, text in sorted(arguments.items())
            if name not in without
        }
        properties["train"] |= {"type": "object", "properties": names, "additionalProperties": False}
    return schema


def _training_arguments() -> dict[str, str | None]:
    """Return the help of each argument by its name, read from the source text of transformers."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    text = Path(spec.submodule_search_locations[0], "training_args.py").read_text(encoding="utf-8")
    (own,) = (each for each in ast.parse(text).body if getattr(each, "name", None) == "TrainingArguments")
    assert isinstance(own, ast.ClassDef)
    fields = [line for line in own.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
    return {line.target.id: _help(line.value) for line in fields if isinstance(line.target, ast.Name)}


def _help(default: ast.expr | None) -> str | None:
    """Return the text in `field(default=…, metadata={"help": text})`."""
    keywords = default.keywords if isinstance(default, ast.Call) else []
    metadata = next((each.value for each in keywords if each.arg == "metadata"), None)
    if not isinstance(metadata, ast.Dict):
        return None
    for key, value in zip(metadata.keys, metadata.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "help":
            return str(ast.literal_eval(value))
    return None
