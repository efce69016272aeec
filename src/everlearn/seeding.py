"""Randomness that depends on names and positions only, never on what ran before."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_for(*parts: object) -> int:
    """A 63-bit seed from any printable parts: the same parts, the same seed, on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@contextlib.contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Run a block under its own seed and leave every global generator as it was found.

    Method hooks run inside this, so that an importance pass cannot change the dropout of the training after it.
    """
    seed = seed_for(*parts)
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def set_all(*parts: object) -> None:
    """Seed every global generator (used once at the start of a stage)."""
    seed = seed_for(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
