"""Measure the most memory that a process held since a chosen moment."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Reset the peak that :func:`peak_memory` returns.

    Where the system cannot reset a process's peak (only Linux can), it stays the peak since the process started.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")  # proc(5): resets the peak resident set size ("high water mark")


def peak_memory() -> int:
    """Return the most bytes held since the last reset: by the accelerator, or without one by the process.

    0 if the system does not report it (Windows without an accelerator).
    """
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, StopIteration, ValueError):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if resource is None:
        return 0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used if sys.platform == "darwin" else used * 1024)
