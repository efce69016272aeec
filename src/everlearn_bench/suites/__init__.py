"""Built-in benchmark streams: text, orders, end tasks, and published numbers and claims.

In a recipe, ``suite:docs/sympy/train.jsonl`` is a file of the suite ``docs``, built on demand. A suite is a package in
this folder with a ``suite.py``, which registers it, and an entry point of its name in ``pyproject.toml``.
"""

from __future__ import annotations

from everlearn.config.addresses import SUITES, locate
from everlearn.grid.template import System
from everlearn_bench.suites.base import Published, Suite, find_suite, register_suite
from everlearn_bench.suites.settings import EndTaskSettings, PromptSettings, Settings, StreamSettings

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
