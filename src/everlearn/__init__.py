"""everlearn: teach a language model one domain after another, and show that it forgot nothing.

The names below are imported when they are first used, so that ``import everlearn`` and the command line stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everlearn.config.recipe import Recipe
    from everlearn.data.corpus import Corpus, Domain
    from everlearn.data.endtask import EndTask
    from everlearn.errors import EverlearnError
    from everlearn.evaluation.results import Results
    from everlearn.learner import ContinualLearner
    from everlearn.methods.adapters.inc_lora import IncLoRA
    from everlearn.methods.base import Mask, Memory, Method, MethodConfig, Needs, Stage, register
    from everlearn.methods.masks.das import DAS
    from everlearn.methods.masks.migu import MIGU
    from everlearn.methods.penalties.ewc import EWC
    from everlearn.methods.rehearsal.replay import Replay
    from everlearn.methods.sequential import Sequential
    from everlearn.protecting import protect

__version__ = "0.1.0"

_WHERE = {
    "everlearn.data.corpus": ("Corpus", "Domain"),
    "everlearn.data.endtask": ("EndTask",),
    "everlearn.errors": ("EverlearnError",),
    "everlearn.evaluation.results": ("Results",),
    "everlearn.learner": ("ContinualLearner",),
    "everlearn.methods.base": ("Mask", "Memory", "Method", "MethodConfig", "Needs", "Stage", "register"),
    "everlearn.methods.masks.das": ("DAS",),
    "everlearn.methods.penalties.ewc": ("EWC",),
    "everlearn.methods.adapters.inc_lora": ("IncLoRA",),
    "everlearn.methods.masks.migu": ("MIGU",),
    "everlearn.methods.rehearsal.replay": ("Replay",),
    "everlearn.methods.sequential": ("Sequential",),
    "everlearn.config.recipe": ("Recipe",),
    "everlearn.protecting": ("protect",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "DAS",
    "EWC",
    "MIGU",
    "ContinualLearner",
    "Corpus",
    "Domain",
    "EndTask",
    "EverlearnError",
    "IncLoRA",
    "Mask",
    "Memory",
    "Method",
    "MethodConfig",
    "Needs",
    "Recipe",
    "Replay",
    "Results",
    "Sequential",
    "Stage",
    "__version__",
    "protect",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'everlearn' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
