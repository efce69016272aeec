"""Numbers with nouns in the singular or plural; shares, sizes and times with their units; commands to copy."""

from __future__ import annotations

import re
import shlex

_SIBILANT = re.compile(r"(s|x|z|ch|sh)$")
_CONSONANT_Y = re.compile(r"[^aeiou]y$")


IMPORTS: list[str] = []
"""Modules and files that the running command was given with `--import`; every command that it prints needs them too."""


def command(*words: object) -> str:
    """Return a command of everlearn as a shell reads it: `everlearn resume 'runs/my run'`."""
    imports = [word for each in IMPORTS for word in ("--import", each)]
    return shlex.join(["everlearn", *map(str, words), *imports])


def plural(noun: str) -> str:
    """Return the regular plural of a noun or of a phrase that ends in one: "end task" → "end tasks"."""
    if _SIBILANT.search(noun):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if _CONSONANT_Y.search(noun) else f"{noun}s"


def be(number: float) -> str:
    """Return "is" or "are" to agree with a number: "1 domain is", "2 domains are"."""
    return "is" if number == 1 else "are"


def count(number: float, noun: str, several: str | None = None) -> str:
    """Return a number with its noun: "1 domain", "3 domains", "12,800 tokens".

    Args:
        number: How many there are; thousands are separated.
        noun: What is counted, in the singular.
        several: The plural where it is irregular.
    """
    return f"{number:,} {noun if number == 1 else several or plural(noun)}"


def value(of: object) -> str:
    """Return the value of an option as a person writes it: 14600 and not 14600.0; members of a list with commas."""
    if isinstance(of, list | tuple):
        return ", ".join(map(value, of))
    return repr(of).removesuffix(".0") if isinstance(of, float) else str(of)


def percent(share: float, digits: int = 1) -> str:
    """Return a share in percent: "36.3 %"."""
    return f"{100 * share:.{digits}f} %"


def size(number: float) -> str:
    """Return a number of bytes in readable units: 12 B, 341 kB, 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours, whichever fits."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
