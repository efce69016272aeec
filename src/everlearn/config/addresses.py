"""Resolve the paths of a recipe: files and folders, `suite:` addresses, and ids of a hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from everlearn import plugins
from everlearn.errors import RecipeError, did_you_mean
from everlearn.options import home


class Located(Protocol):
    """The part of a suite that resolves addresses."""

    def locate(self, inside: str) -> Path:
        """Return the file or folder at an address, given without ``suite:NAME/``."""


SUITES: plugins.Registry[Located] = plugins.Registry("suites")
"""Name → suite. In a recipe, ``suite:docs/sympy/train.jsonl`` is a file of the suite ``docs``, built on demand."""


LISTENERS: list[Callable[[str], None]] = []
"""Functions that are told, in a sentence, when a suite builds files, which can take minutes."""


def tell(sentence: str) -> None:
    """Tell the listeners what a suite builds."""
    for listener in LISTENERS:
        listener(sentence)


def is_address(text: object) -> bool:
    """Return whether a value of a recipe is a ``suite:`` address."""
    return isinstance(text, str) and text.startswith("suite:")


def located(text: str, key: str) -> str:
    """Resolve a path of a recipe.

    Args:
        text: a path, a ``suite:`` address or a hub id.
        key: the key of the recipe, for error messages.

    Returns:
        The absolute path of an existing file or folder; other texts, such as hub ids, unchanged.

    Raises:
        RecipeError: the address does not exist.
    """
    if is_address(text):
        return str(locate(text.removeprefix("suite:")))
    path = home(text, key)
    return str(path.resolve()) if text and path.exists() else text


def locate(address: str) -> Path:
    """Return the file or folder at a ``suite:`` path, given without that prefix.

    Raises:
        RecipeError: there is no such suite or file.
        DataError: the data that the file is built from is missing.
    """
    name, _, inside = address.partition("/")
    return suite(name, f" ('suite:{address}')").locate(inside)


def suite(name: str, where: str = "") -> Located:
    """Return a suite by its name.

    Args:
        name: name of the suite.
        where: describes, for the error, where the address was named.

    Raises:
        RecipeError: there is no suite of this name.
    """
    if name not in SUITES:
        near = f" {plugins.STALE}" if plugins.is_stale() else did_you_mean(name, SUITES)
        raise RecipeError(f"There is no suite '{name}'{where}.{near}")
    return SUITES[name]
