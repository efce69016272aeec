"""Built-in benchmark streams: text, orders, end tasks, and published numbers and claims.

In a recipe, ``suite:docs/sympy/train.jsonl`` is a file of the suite ``docs``, built on demand. A suite is a package in
this folder with a ``suite.py``, which registers it. It knows methods by name only, and nothing of runs, reports or
grids.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from everlearn.suites.base import SUITES, Published, Suite, System, find_suite, locate, register_suite
from everlearn.suites.settings import EndTaskSettings, PromptSettings, Settings, StreamSettings

for _suite in sorted(Path(__file__).parent.glob("*/suite.py")):
    importlib.import_module(f"{__name__}.{_suite.parent.name}.suite")

__all__ = [
    "SUITES",
    "EndTaskSettings",
    "PromptSettings",
    "Published",
    "Settings",
    "StreamSettings",
    "Suite",
    "System",
    "find_suite",
    "locate",
    "register_suite",
]
