"""Define the kinds of tasks on which a checkpoint is evaluated: one file each, with options, reader and measurement.

Every module in this folder is imported, so a new file with ``@register_kind`` is enough to add a kind.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")
