"""The version of the package, for everything that writes it down."""

from __future__ import annotations

__version__ = "0.1.0"
