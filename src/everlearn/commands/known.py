"""List the available methods: everlearn's from saved tables, without imports; those of plugins from their classes."""

from __future__ import annotations

import sys
from typing import Any

from everlearn import plugins
from everlearn.commands import saved_tables
from everlearn.errors import no_such_method


def methods() -> list[dict[str, Any]]:
    """Return the description of every method and variant; torch is imported only if a plugin may define methods."""
    listed = saved_tables.methods()
    if plugins.may_bring("methods"):
        from everlearn.commands.describe import describe_all

        own = {each["name"] for each in listed}
        listed += [each for each in describe_all() if each["name"] not in own]
    return listed


def method(name: str) -> dict[str, Any]:
    """Return the description of a method or variant; torch is imported only for those of plugins.

    Raises:
        MethodError: there is no such method; the message suggests similar names.
        PluginError: a plugin brings it, but is broken.
    """
    listed = saved_tables.methods()
    for each in listed:
        if each["name"] == name:
            return each
    if plugins.may_bring("methods") or "everlearn.methods" in sys.modules:
        from everlearn.commands.describe import describe

        return describe(name)
    raise no_such_method(name, method_names(), {own: each["name"] for each in listed for own in each["in_das_paper"]})


def method_names() -> list[str]:
    """Return the names of methods, variants and methods of installed plugins; imports nothing."""
    return sorted({*(each["name"] for each in saved_tables.methods()), *plugins.names("methods")})


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, with methods and kinds of end tasks that plugins bring."""
    if plugins.may_bring("methods", "tasks"):
        from everlearn.commands.describe import schema

        return schema()
    return saved_tables.schema()
