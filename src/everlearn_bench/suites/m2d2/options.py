"""The keys of the suite `m2d2` in an overlay, and where its data can be fetched."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everlearn_bench.suites.base import Suite
from everlearn_bench.suites.m2d2.domain_names import NAMES
from everlearn_bench.suites.sources import Fetchable


class StreamOptions(Suite.Config):
    """Keys of `suite:`: the domains of a stream, and the processing of their text."""

    domains: tuple[str, ...] = ()
    """Domains, or groups and super-domains with all their domains; every domain by default."""
    level: Literal[1, 2] = 2
    """Level of M2D2's taxonomy: its groups (L1), or their parts (L2). A stream has one of the two: L1 contains L2."""
    aliases: Literal["drop", "keep"] = "drop"
    """Second names of categories of arXiv, such as `cs.NA` for `math.NA`, which have nearly the same papers."""
    duplicates: Literal["remove", "report"] = "remove"
    """Documents that repeat one of their own or of another domain: removed, or only counted."""
    near: float = Field(default=0.8, ge=0.5, le=1)
    """Jaccard similarity of 5-word shingles from which on a document repeats another; 1 finds exact copies only."""
    domain_bytes: int | None = Field(default=None, ge=1)
    """Largest size of a domain's training text: the documents that come first by their hashes, without any that alone
    exceeds it (if all do, the first)."""
    held_out_bytes: int | None = Field(default=None, ge=1)
    """Largest size of its validation and of its test part."""
    balanced: bool = False
    """Truncate the training text of every domain to that of the smallest."""
    measured: Literal["valid", "test"] = "test"
    """The part that is evaluated."""
    embedding: str | None = None
    """Encoder for the order `similar`: a hub id or a folder; by default hashed TF-IDF, which needs none."""
    samples: int = Field(default=1000, ge=1)
    """Documents per domain for the order `similar` (five times as many of general text); the study used 10,000."""
    big_bench: int | None = Field(default=None, ge=1)
    """Ask the study's five tasks of BIG-bench before the first domain and after each super-domain, at most this number
    of examples of each subtask (:mod:`everlearn_bench.suites.m2d2.big_bench`)."""
    order: str | None = None
    """File of the order `file`: names of domains, one per line; or the `domains` in a file that a run wrote."""


HUB = "https://huggingface.co/datasets/machelreid/m2d2/resolve/main/data"
LICENCE = "CC-BY-NC-4.0, as the data set's card says"
BY_HAND = (
    "The tarballs are in the folder `data` of https://huggingface.co/datasets/machelreid/m2d2. Put those that you want "
    "into a folder, packed or unpacked, and pass it as `--data`. `suite.domains` in the settings selects what "
    "`--data fetch` downloads."
)
SOURCES = tuple(Fetchable(f"{name}.tar.gz", f"{HUB}/{name}.tar.gz", LICENCE) for name in NAMES)
"""All 236, both levels. `main` and no commit: an early revision called the test file training text."""
