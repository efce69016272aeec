"""Ranges in which the options of a method are worth searching: ``everlearn tune`` draws from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

DIGITS = 3
"""Significant digits of a number that is drawn."""


@dataclass(frozen=True)
class Around:
    """A positive number around the one in the recipe, log-uniform: from value / factor to value × factor.

    If the recipe has a list (a number for each domain), all its numbers are multiplied by the same factor.
    """

    factor: float

    def at(self, u: float, value: Any) -> Any:
        """Return the number at `u` in [0, 1)."""
        by = self.factor ** (2 * u - 1)
        return [_rounded(each * by) for each in value] if isinstance(value, list | tuple) else _rounded(value * by)

    def describe(self, value: Any) -> str:
        """Return the range in words."""
        if isinstance(value, list | tuple):
            return f"a {self.factor:g}th of the recipe's to {self.factor:g} times them, log-uniform"
        return f"{_rounded(value / self.factor):g} to {_rounded(value * self.factor):g}, log-uniform"


@dataclass(frozen=True)
class Between:
    """A number between two bounds, uniform or log-uniform, whatever the recipe has."""

    low: float
    high: float
    log: bool = False

    def at(self, u: float, value: Any) -> float:
        """Return the number at `u` in [0, 1)."""
        if self.log:
            return _rounded(self.low * (self.high / self.low) ** u)
        return _rounded(self.low + u * (self.high - self.low))

    def describe(self, value: Any) -> str:
        """Return the range in words."""
        return f"{self.low:g} to {self.high:g}, {'log-uniform' if self.log else 'uniform'}"


@dataclass(frozen=True)
class OneOf:
    """One of several values, each as likely."""

    values: tuple[Any, ...]

    def at(self, u: float, value: Any) -> Any:
        """Return the value at `u` in [0, 1)."""
        return self.values[int(u * len(self.values))]

    def describe(self, value: Any) -> str:
        """Return the choices in words."""
        return f"one of {', '.join(map(str, self.values))}"


Range = Around | Between | OneOf


def ranges(**options: Range) -> Mapping[str, Range]:
    """Return the range of each option, in this order, as a method declares them (:attr:`Method.search`)."""
    return MappingProxyType(options)


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
