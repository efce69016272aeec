"""What may be named here: everlearn's own from tables that load nothing, what plugins add from their classes."""

from __future__ import annotations

from typing import Any

from everlearn import plugins
from everlearn.commands import saved_tables


def methods() -> list[dict[str, Any]]:
    """Return the description of every method and variant; torch is loaded only where plugins may bring some."""
    listed = saved_tables.methods()
    if plugins.may_bring("methods"):
        from everlearn.commands.describe import describe_all

        own = {each["name"] for each in listed}
        listed += [each for each in describe_all() if each["name"] not in own]
    return listed


def method_names() -> list[str]:
    """Return the names of methods, variants and methods of installed plugins; imports nothing."""
    return sorted({*(each["name"] for each in saved_tables.methods()), *plugins.names("methods")})


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, with methods and kinds of end tasks that plugins bring."""
    if plugins.may_bring("methods", "tasks"):
        from everlearn.commands.describe import schema

        return schema()
    return saved_tables.schema()
