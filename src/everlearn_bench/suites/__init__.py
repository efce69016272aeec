"""Built-in benchmark streams: text, orders, end tasks, and published numbers and claims.

In a recipe, ``suite:docs/sympy/train.jsonl`` is a file of the suite ``docs``, built on demand. A suite is a package in
this folder with a ``suite.py``, which registers it, and an entry point of its name in ``pyproject.toml``.
"""

from __future__ import annotations

from everlearn.config.addresses import SUITES, locate
from everlearn.grid.template import System
from everlearn_bench.suites.base import Published, Suite, find_suite, register_suite
from everlearn_bench.suites.overlay import Overlay, overlay_of, read_overlay

__all__ = [
    "SUITES",
    "Overlay",
    "Published",
    "Suite",
    "System",
    "find_suite",
    "locate",
    "overlay_of",
    "read_overlay",
    "register_suite",
]
