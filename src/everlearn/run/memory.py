"""The most memory that a stretch of a process held."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Begin a new stretch: what was held before does not count in :func:`peak_memory` any more.

    Where the system does not allow that for the process (not Linux), its peak is that of its whole life.
    """
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")  # proc(5): resets the peak resident set size ("high water mark")


def peak_memory() -> int:
    """Bytes: the most that the accelerator held since the last reset, or the process where there is none."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, StopIteration, ValueError):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used if sys.platform == "darwin" else used * 1024)
