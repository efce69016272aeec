"""Collect versions and hardware, for bug reports and for the record of a run."""

from __future__ import annotations

import functools
import os
import platform
import sys
from importlib import metadata
from typing import Any

from everlearn import plugins
from everlearn.version import __version__

PACKAGES = ("torch", "transformers", "accelerate", "peft", "datasets", "tokenizers", "safetensors", "numpy", "scipy")


def environment() -> dict[str, Any]:
    """Return versions and hardware, for ``environment.json`` and ``everlearn env``."""
    import torch

    cuda = torch.cuda.is_available()
    for group in ("metrics", "quantities"):  # loads every installed plugin: each can contribute to the results
        if plugins.may_bring(group):
            plugins.load(group)
    return {
        "everlearn": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": _memory(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "command": " ".join(["everlearn", *sys.argv[1:]]) if "everlearn" in sys.argv[0] else "Python",
    } | ({"plugins": brought} if (brought := plugins.record()) else {})


@functools.cache
def _version(package: str) -> str:
    """Return the installed version of a package."""
    return metadata.version(package)


def _memory() -> int | None:
    """Return the bytes of this machine's memory; None where the system does not report it (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
