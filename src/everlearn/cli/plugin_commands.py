"""The commands of plugins: listed from their source, imported only when they are called."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable, Container
from importlib.machinery import PathFinder
from pathlib import Path

from everlearn import plugins
from everlearn.errors import PluginError

HEADING = "Plugins"
"""Where `everlearn --help` lists a command whose module has no `HEADING` of its own."""


def listed(known: Container[str]) -> dict[str, tuple[str, Callable[[], None]]]:
    """Return each command with its heading and a placeholder that has its help text; broken plugins are omitted.

    Args:
        known: everlearn's own commands.
    """
    commands = {}
    for command in plugins.names("verbs"):
        heading, text = (HEADING, None) if command in known else _described(command)
        if text is not None:
            commands[command] = heading, stand_in(text)
    return commands


def stand_in(text: str) -> Callable[[], None]:
    """Return a command that has nothing but its help text."""

    def command() -> None:
        pass

    command.__doc__ = text
    return command


def _described(command: str) -> tuple[str, str | None]:
    """Return the heading and the first line of the help text; None if it cannot be imported.

    They are read from the source, without importing it: a plugin may import torch, and a list must answer at once. A
    command whose source is not found is imported.
    """
    module, function = plugins.place_of(command)
    heading, text = HEADING, None
    for node in _source(module).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            text = ast.get_docstring(node)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "HEADING":
            heading = str(ast.literal_eval(node.value))
    if text is None:
        try:
            text = inspect.getdoc(plugins.command_of(command))
        except PluginError:  # reported after the list
            return heading, None
    return heading, (text or "").partition("\n")[0]


def docstring_of(module: str, is_it: Callable[[ast.FunctionDef], bool]) -> str | None:
    """Return the docstring of a module's first function for which `is_it` is true, without importing the module."""
    functions = (node for node in _source(module).body if isinstance(node, ast.FunctionDef))
    return next((ast.get_docstring(node) for node in functions if is_it(node)), None)


def _source(module: str) -> ast.Module:
    """Return the syntax tree of a module without importing its parent packages; an empty tree if there is none."""
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for place in range(len(parts)):
            folders = None if spec is None else spec.submodule_search_locations
            name = ".".join([top, *parts[: place + 1]])
            spec = None if folders is None else PathFinder.find_spec(name, list(folders))
        return ast.parse("" if spec is None else Path(str(spec.origin)).read_text(encoding="utf-8"))
    except (ImportError, ValueError, OSError, SyntaxError):
        return ast.parse("")
