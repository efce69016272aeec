"""Express times in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours, whichever fits."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
