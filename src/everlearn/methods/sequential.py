"""Plain sequential training, the baseline of all methods."""

from __future__ import annotations

from typing import Any, ClassVar

from everlearn.methods.base import Method, register


@register
class Sequential(Method):
    """Train on one domain after another with no protection at all (called NCL in the DAS paper)."""

    name = "sequential"
    title = "Sequential"
    summary = "plain training, the baseline"
    paper = ""
    kinds = ("none",)
    in_das_paper: ClassVar[tuple[str, ...]] = ("ncl",)
    identity: ClassVar[dict[str, Any] | None] = {}


PLAIN = Sequential.name
"""Name of plain training: the default method of a recipe, and the baseline of tables."""
