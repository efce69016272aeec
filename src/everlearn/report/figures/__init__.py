"""Register every figure of every page; a new figure is one file in this folder."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from everlearn.report.figures.registry import FIGURES, Figure, Plate, draw, figure, in_section, plate

for _module in sorted(info.name for info in iter_modules(__path__)):
    import_module(f"{__name__}.{_module}")

__all__ = ["FIGURES", "Figure", "Plate", "draw", "figure", "in_section", "plate"]
