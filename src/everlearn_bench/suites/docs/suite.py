"""The suite `docs` for recipes, grids and pages."""

from __future__ import annotations

from pathlib import Path

from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.docs import address


@register_suite
class Docs(Suite):
    """Documentation of six installed libraries: needs no network, no data and no other model."""

    name = "docs"

    def locate(self, inside: str) -> Path:
        """Return the file of a corpus or of an end task, or the folder of the base model."""
        return address.locate(inside)
