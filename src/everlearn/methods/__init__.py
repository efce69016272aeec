"""Continual-learning methods, one file each, in families by the part of the training that they change.

Every module in this package is imported, so a new file with ``@register`` is all that a new method needs. :mod:`base`
is the interface, :mod:`engine` applies it; the package of a family documents its common parts. A method never calls
``backward``, ``step`` or ``zero_grad``, never prints and never sees the trainer.
"""

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
