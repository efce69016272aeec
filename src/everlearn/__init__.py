"""everlearn: train a language model on one domain after another, and measure what it forgets.

Names are imported when they are first used, so that ``import everlearn`` and the command line stay fast. In addition to
the names below, every method is available under its class name. ``python docs/method_tables.py`` writes the types to
``__init__.pyi``.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from everlearn.version import __version__ as __version__

PUBLIC = {
    "ContinualLearner": "everlearn.learner",
    "Corpus": "everlearn.data.corpus",
    "Domain": "everlearn.data.corpus",
    "EndTask": "everlearn.tasks.labelled",
    "EverlearnError": "everlearn.errors",
    "Mask": "everlearn.methods.base",
    "Memory": "everlearn.methods.base",
    "Method": "everlearn.methods.base",
    "MethodConfig": "everlearn.methods.base",
    "Needs": "everlearn.methods.base",
    "Recipe": "everlearn.config.recipe",
    "Results": "everlearn.evaluation.results",
    "RunResults": "everlearn.report.run_results",
    "Stage": "everlearn.methods.base",
    "diff": "everlearn.diagnostics.diff.comparing",
    "export": "everlearn.commands.export",
    "extend_vocabulary": "everlearn.model.vocabulary",
    "merge": "everlearn.commands.merge",
    "protect": "everlearn.protecting",
    "register": "everlearn.methods.base",
    "repair": "everlearn.diagnostics.repair",
}
"""Public name → its module, without the methods."""


@cache
def _module_of() -> dict[str, str]:
    """Return the module of each public name; methods are read from a saved table, without importing them."""
    from everlearn.commands import saved_tables

    classes = (each["class"].rpartition(".") for each in saved_tables.methods())
    return PUBLIC | {name: module for module, _, name in classes}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    module = PUBLIC.get(name) or (_module_of().get(name) if name[:1].isupper() else None)
    if module is None:
        raise AttributeError(f"module 'everlearn' has no attribute '{name}'")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*_module_of(), "__version__"])
