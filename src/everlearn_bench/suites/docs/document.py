"""A document of the suite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Split = Literal["test", "validation", "train"]


@dataclass(frozen=True, slots=True)
class Doc:
    """One document."""

    text: str
    subpackage: str
    """Subpackage of the library (``core``, ``algorithms.flow``); empty if unknown or not a docstring."""
    split: Split
    key: str
    """Hash of its letters and digits: decides split and order, and finds duplicates."""
