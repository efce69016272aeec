"""Where M2D2's tarballs can be fetched: one per domain, from the hub."""

from __future__ import annotations

from everlearn_bench.suites.m2d2.names import NAMES
from everlearn_bench.suites.sources import Fetchable

HUB = "https://huggingface.co/datasets/machelreid/m2d2/resolve/main/data"
LICENCE = "CC-BY-NC-4.0, as the data set's card says"
BY_HAND = (
    "The tarballs are in the folder `data` of https://huggingface.co/datasets/machelreid/m2d2: put those that you want "
    "into a folder, as they are or unpacked, and name it with `--data`. `suite.domains` in the settings says which "
    "are fetched."
)
SOURCES = tuple(Fetchable(f"{name}.tar.gz", f"{HUB}/{name}.tar.gz", LICENCE) for name in NAMES)
"""All 236, both levels. `main` and no commit: an early revision called the test file training text."""
