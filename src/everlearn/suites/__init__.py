"""Built-in streams. In a recipe, ``suite:docs/sympy/train.jsonl`` is a file of the suite ``docs``, made on demand."""

from __future__ import annotations

import importlib
from pathlib import Path

from everlearn.errors import RecipeError, did_you_mean

SUITES = {"docs": "everlearn.suites.docs.address", "six-domains": "everlearn.suites.six_domains.address"}
"""Name in an address → module with its ``locate(inside)``."""


def locate(address: str) -> Path:
    """The file or folder behind a ``suite:`` path, without that prefix.

    Raises:
        RecipeError: there is no such suite or file.
        DataError: what the file is made of is missing.
    """
    suite, _, inside = address.partition("/")
    if suite not in SUITES:
        raise RecipeError(f"There is no suite '{suite}' ('suite:{address}').{did_you_mean(suite, SUITES)}")
    found: Path = importlib.import_module(SUITES[suite]).locate(inside)
    return found
