"""How numbers are written: one typography for every output."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from everlearn.evaluation.estimate import Estimate

MISSING = "–"
_MINUS = "\u2212"


def decimals(values: Iterable[float | None]) -> int:
    """Decimals that give about three significant digits to the largest of these numbers."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    return 1 if largest >= 100 else 2 if largest >= 10 else 3


def fixed(value: float | None, places: int = 3, signed: bool = False) -> str:
    """A number with a true minus sign; "–" when there is none, and never "-0.000"."""
    if value is None:
        return MISSING
    rounded = round(value, places) or 0.0
    return f"{rounded:{'+' if signed and rounded else ''},.{places}f}".replace("-", _MINUS)


def interval(estimate: Estimate, places: int = 3, signed: bool = False) -> str:
    """``[low, high]``, or nothing when the interval is unknown."""
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f"[{fixed(low, places, signed)}, {fixed(high, places, signed)}]"


def p_value(p: float | None, places: int = 3) -> str:
    """``p = 0.012``, ``p < 0.001``, or nothing where there is none."""
    if p is None:
        return ""
    least = 10.0**-places
    return f"p < {least:.{places}f}" if p < least / 2 else f"p = {p:.{places}f}"


def estimate(found: Estimate, places: int = 3, signed: bool = False) -> str:
    """``value [low, high]``."""
    return f"{fixed(found.value, places, signed)} {interval(found, places, signed)}".strip()


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return MISSING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:,.2f} TiB"


def whole(count: float | None) -> str:
    """A count with thousands separated."""
    return MISSING if count is None else f"{count:,.0f}"


def percent(share: float | None) -> str:
    """A share of one as a percentage."""
    return MISSING if share is None else f"{fixed(100 * share, 2)} %"


def listing(words: list[str], conjunction: str = "and") -> str:
    """``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}" if words else ""


def shorten(text: str, length: int) -> str:
    """One line of at most `length` characters; what is left out is the middle, since names often differ at the end."""
    text = " ".join(text.split())
    head = length // 2
    return text if len(text) <= length else f"{text[:head].rstrip()}…{text[head + 1 - length :].lstrip()}"


def named(what: str, name: str) -> str:
    """Return what something is with its name, unless the name only repeats it: "General text (wikipedia)"."""
    return what if name.lower() in what.lower().split() else f"{what} ({name})"


def again(folder: str) -> str:
    """The command that makes a run once more, beside the first."""
    name = f"{folder}-again"
    parts = [f"{folder}/recipe.yaml", f"run.name={name.rpartition('/')[2]}", f"run.folder={name}"]
    return "everlearn run " + " ".join(map(shlex.quote, parts))


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested mapping as dotted names and texts."""
    found: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            found += flatten(item, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", ", ".join(map(str, item)) if isinstance(item, list) else str(item)))
    return found
