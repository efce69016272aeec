"""Random seeds that depend on names and positions only, never on what ran before.

Torch is imported only where its generators are used, since reading data needs seeds but not torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np


def seed_for(*parts: object) -> int:
    """Return a 63-bit seed made of any printable parts; the same parts give the same seed on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@contextlib.contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Run a block under its own seed and restore every global generator afterwards.

    Method hooks run inside this, so that an importance pass cannot change the dropout of the training after it.
    """
    import torch

    seed = seed_for(*parts)
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        _seed_everything(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


class Stream:
    """A random stream with a seed of its own that can be interrupted: each ``with`` continues where the last one ended.

    Args:
        parts: the parts of the seed.
    """

    def __init__(self, *parts: object) -> None:
        self._parts = parts
        self._states: tuple[Any, ...] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Make the global generators draw from this stream; restore them afterwards."""
        import torch

        with seeded(*self._parts):
            if self._states is not None:
                python, numpy, cpu, devices = self._states
                random.setstate(python)
                np.random.set_state(numpy)
                torch.set_rng_state(cpu)
                if devices:
                    torch.cuda.set_rng_state_all(devices)
            try:
                yield
            finally:
                devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
                self._states = random.getstate(), np.random.get_state(), torch.get_rng_state(), devices


def set_all(*parts: object) -> None:
    """Seed every global generator (used once at the start of a stage)."""
    _seed_everything(seed_for(*parts))


def _seed_everything(seed: int) -> None:
    """Seed every global generator, those of each device too."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    # Without a device, `torch.manual_seed` stores a stack trace for each kind of device, which takes milliseconds.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)
