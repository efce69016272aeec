"""The methods. Every module in here is imported, so a new file with ``@register`` is all that it takes."""

from __future__ import annotations

import importlib
import pkgutil

from everlearn.methods.base import (
    REGISTRY,
    Cost,
    Mask,
    Memory,
    Method,
    MethodConfig,
    Needs,
    Reading,
    Stage,
    Variant,
    View,
    build,
    names,
    register,
)

for _module in sorted(module.name for module in pkgutil.walk_packages(__path__, f"{__name__}.")):
    importlib.import_module(_module)

__all__ = [
    "REGISTRY",
    "Cost",
    "Mask",
    "Memory",
    "Method",
    "MethodConfig",
    "Needs",
    "Reading",
    "Stage",
    "Variant",
    "View",
    "build",
    "names",
    "register",
]
