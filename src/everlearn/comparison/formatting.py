"""Write numbers in the same form in every output."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from everlearn.evaluation.estimate import Estimate

MISSING = "–"
_MINUS = "\u2212"


def decimals(values: Iterable[float | None]) -> int:
    """Return the number of decimals that gives the largest of these numbers about three significant digits."""
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    return 1 if largest >= 100 else 2 if largest >= 10 else 3


def fixed(value: float | None, places: int = 3, signed: bool = False) -> str:
    """Write a number with a true minus sign; "–" for None, and never "-0.000"."""
    if value is None:
        return MISSING
    rounded = round(value, places) or 0.0
    return f"{rounded:{'+' if signed and rounded else ''},.{places}f}".replace("-", _MINUS)


def no_formula(value: Any) -> Any:
    """Return a field of CSV; an apostrophe precedes text that a spreadsheet would take for a formula and evaluate."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def interval(estimate: Estimate, places: int = 3, signed: bool = False) -> str:
    """Write an interval as ``[low, high]``, or nothing if it is unknown."""
    if estimate.interval is None:
        return ""
    low, high = estimate.interval
    return f"[{fixed(low, places, signed)}, {fixed(high, places, signed)}]"


def marked_intervals(marks: str, estimates: Iterable[Estimate | None]) -> str:
    """Return the sentence of a caption that says how intervals are drawn; "" if there is none, as with one run."""
    return f" {marks}: 95 % intervals over runs." if any(each and each.interval for each in estimates) else ""


def p_value(p: float | None, places: int = 3) -> str:
    """Write ``p = 0.012`` or ``p < 0.001``, or nothing for None."""
    if p is None:
        return ""
    least = 10.0**-places
    return f"p < {least:.{places}f}" if p < least / 2 else f"p = {p:.{places}f}"


def estimate(measurement: Estimate, places: int = 3, signed: bool = False) -> str:
    """Write ``value [low, high]``."""
    return f"{fixed(measurement.value, places, signed)} {interval(measurement, places, signed)}".strip()


def precise_duration(seconds: float | None) -> str:
    """Write a time in seconds, minutes or hours."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def integer(count: float | None) -> str:
    """Write a count with separated thousands."""
    return MISSING if count is None else f"{count:,.0f}"


def percent(share: float | None) -> str:
    """Write a share of one as a percentage."""
    return MISSING if share is None else f"{fixed(100 * share, 2)} %"


def listing(words: list[str], conjunction: str = "and") -> str:
    """Join words as ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}" if words else ""


def shorten(text: str, length: int) -> str:
    """Return one line of at most `length` characters; the middle is cut, since names often differ at the end."""
    text = " ".join(text.split())
    head = length // 2
    return text if len(text) <= length else f"{text[:head].rstrip()}…{text[head + 1 - length :].lstrip()}"


def named(what: str, name: str) -> str:
    """Return a description followed by a name, unless it contains the name: "General text (wikipedia)"."""
    return what if name.lower() in what.lower().split() else f"{what} ({name})"


def again(folder: str, imports: Iterable[str] = ()) -> str:
    """Return the command that repeats a run in a folder beside the first.

    Args:
        folder: the run's folder.
        imports: modules and files that it imports (`--import`).
    """
    name = f"{folder}-again"
    parts = [f"{folder}/recipe.yaml", f"run.name={name.rpartition('/')[2]}", f"run.folder={name}"]
    parts += [word for each in imports for word in ("--import", each)]
    return "everlearn run " + " ".join(map(shlex.quote, parts))


def flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return a nested mapping as dotted names and texts."""
    pairs: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            pairs += flatten(item, f"{prefix}{key}.")
        else:
            pairs.append((f"{prefix}{key}", ", ".join(map(str, item)) if isinstance(item, list) else str(item)))
    return pairs
