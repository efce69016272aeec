"""What a checkpoint is asked: one file a kind of task, with its options, its reader and how it asks.

Every module in here is imported, so a new file with ``@register_kind`` is all that it takes.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
