"""What a method adds to plain training: bytes, parameters, and passes in and beside the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FORWARD = 1 / 3
"""A forward pass alone, about, in units of a forward and backward pass (:attr:`Cost.passes_per_step`)."""


@dataclass(frozen=True)
class Cost:
    """What a method adds to plain training of one model."""

    memory_bytes: int = 0
    """Held during training, beyond model, gradients and optimizer."""
    measuring_bytes: int = 0
    """Held beside `memory_bytes` while something is measured between domains (importance, what layers read), when
    training's own gradients and activations are gone; without the activations of the rows that it is measured on."""
    disk_bytes: int = 0
    """Memory saved with each stage, however many domains were learnt."""
    disk_bytes_per_domain: int = 0
    """Memory saved with each stage for every domain learnt so far."""
    adapter_bytes_per_domain: int = 0
    """Of the PEFT adapter kept with each stage (:meth:`Method.peft_adapter`), for every domain learnt so far."""
    parameters: int = 0
    """Trainable parameters added."""
    passes_per_step: float = 0.0
    """Extra forward-and-backward passes per step, in units of one plain pass over the batch."""
    passes_per_row: float = 0.0
    """The same over each different row that a domain trains on, however often it does (answers that are kept)."""
    passes_per_domain: int = 0
    """Blocks of a domain run forward and backward once per domain (importance, Fisher)."""
    passes_once: int = 0
    """The same once in a stream (importance to the base model)."""
    once_over: Literal["general", "domain"] = "general"
    """Of which text: the recipe's general text where it has one, or of the first domain whatever it has."""
    samples: int = 0
    """How many different blocks these passes are over, each run as often as another; 0: each is run once."""
    passes_elsewhere: int = 0
    """Blocks of other text run forward and backward once per domain (a probe, text that the model writes)."""
    passes_per_earlier: int = 0
    """The same for every domain learnt before it, of other text; of the domain's own where `samples` is set."""
    at_most: bool = False
    """Whether fewer of these blocks may be run: what is looked for may be found at once."""

    def outside(self, size: int | None, *, trained: int = 0, earlier: int = 0) -> int:
        """Blocks run forward and backward outside of training steps for a domain.

        Args:
            size: blocks that it has; None: a stream of unknown size.
            trained: blocks that its steps take, where `passes_per_row` counts here and not in the steps.
            earlier: domains learnt before it.
        """
        rows = trained if size is None else min(size, trained)
        asked = math.ceil(self.passes_per_row * rows)
        each = self._over(self.passes_per_earlier, size if self.samples else None)
        return self._over(self.passes_per_domain, size) + asked + self.passes_elsewhere + earlier * each

    def outside_once(self, first: int | None, general: int | None) -> int:
        """The same once in a stream, whose first domain and general text have so many; without general text, the first
        domain is what stands for it."""
        return self._over(self.passes_once, general if self.once_over == "general" else first)

    def outside_of(self, sizes: Sequence[int | None], general: int | None, trained: Sequence[int] = ()) -> int:
        """The same of a whole stream; with the blocks that the steps of each domain take, as :meth:`outside`."""
        rows = trained or [0] * len(sizes)
        each = (self.outside(size, trained=n, earlier=i) for i, (size, n) in enumerate(zip(sizes, rows, strict=True)))
        return self.outside_once(sizes[0], general) + sum(each)

    def _over(self, passes: int, size: int | None) -> int:
        """Each pass ends with the text's last block."""
        samples = self.samples or passes
        return passes if size is None or size >= samples else -(-passes * size // samples)

    def saved(self, domains: int) -> int:
        """Bytes of memory saved with the stage after so many domains."""
        return self.disk_bytes + domains * self.disk_bytes_per_domain
