"""The cost of a method beyond plain training: bytes, parameters, and passes inside and outside the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

USUAL_ROW = 512
FORWARD = 1 / 3
"""Approximate cost of a forward pass, in units of a forward and backward pass (:attr:`Cost.passes_per_step`)."""


def usual_row(config: Any) -> int:
    """Return the default number of tokens per row: 512, or the longest input of the model if that is shorter."""
    return min(USUAL_ROW, getattr(config, "max_position_embeddings", None) or USUAL_ROW)


@dataclass(frozen=True)
class Cost:
    """The cost of a method beyond plain training of one model."""

    memory_bytes: int = 0
    """Bytes held during training, beyond model, gradients and optimizer."""
    whole_bytes: int | None = None
    """Under FSDP2, those of `memory_bytes` that a device holds in full, beside its shard of all; None for all of them.
    0 if they lie beside the shards of the parameters only."""
    host_bytes: int = 0
    """Under FSDP2, bytes in the host's memory of each process before training, beyond model and loaded memory."""
    exact_bytes: int = 0
    """Bytes of the exact weights that it reads where adapters are trained on quantised ones; several methods share
    them."""
    measuring_bytes: int = 0
    """Bytes held in addition to `memory_bytes` during measurements between domains (importance, inputs of layers), when
    the gradients and activations of training are freed; without the activations of the measured rows."""
    disk_bytes: int = 0
    """Bytes of memory saved with each stage, independent of the number of domains."""
    disk_bytes_per_domain: int = 0
    """Bytes of memory saved with each stage for every domain learnt so far."""
    adapter_bytes_per_domain: int = 0
    """Bytes of the PEFT adapter saved with each stage (:meth:`Method.peft_adapter`), for every domain learnt so far."""
    parameters: int = 0
    """Number of trainable parameters added."""
    passes_per_step: float = 0.0
    """Extra forward-and-backward passes per step, in units of one plain pass over the batch."""
    passes_per_row: float = 0.0
    """Extra passes over each distinct row of a domain, however often it is trained on (a teacher's stored output)."""
    passes_per_domain: int = 0
    """Blocks of a domain run forward and backward once per domain (importance, Fisher)."""
    passes_once: int = 0
    """Blocks run forward and backward once per stream (importance for the base model)."""
    once_over: Literal["general", "domain"] = "general"
    """Text of these blocks: general text (the first domain's if the recipe has none), or always the first domain's."""
    samples: int = 0
    """Number of distinct blocks in these passes, each run equally often; 0 if every block is run once."""
    passes_elsewhere: int = 0
    """Blocks of other text run forward and backward once per domain (a probe, generated text)."""
    passes_per_earlier: int = 0
    """Blocks run for each earlier domain: of the domain's own text if `samples` is set, otherwise of other text."""
    at_most: bool = False
    """Whether these numbers of blocks are upper limits."""

    @property
    def undivided_bytes(self) -> int:
        """Return the bytes that a device holds in full under FSDP2."""
        return self.memory_bytes if self.whole_bytes is None else self.whole_bytes

    def outside(self, size: int | None, *, trained: int = 0, earlier: int = 0) -> int:
        """Return the number of blocks run forward and backward outside of training steps for a domain.

        Args:
            size: number of blocks of the domain; None for a stream of unknown size.
            trained: number of blocks that its steps process, if `passes_per_row` is counted here and not in the steps.
            earlier: number of domains learnt before it.
        """
        rows = trained if size is None else min(size, trained)
        each = self._over(self.passes_per_earlier, size if self.samples else None)
        own = self._over(self.passes_per_domain, size) + math.ceil(self.passes_per_row * rows)
        return own + self.passes_elsewhere + earlier * each

    def outside_once(self, first: int | None, general: int | None) -> int:
        """Return the number of blocks that are run once per stream.

        Args:
            first: number of blocks of the first domain, which is used if there is no general text.
            general: number of blocks of the general text.
        """
        return self._over(self.passes_once, general if self.once_over == "general" else first)

    def outside_of(self, sizes: Sequence[int | None], general: int | None, trained: Sequence[int] = ()) -> int:
        """Return the total of :meth:`outside` and :meth:`outside_once` over a stream.

        Args:
            sizes: number of blocks of each domain.
            general: number of blocks of the general text.
            trained: number of blocks that the steps of each domain process.
        """
        rows = trained or [0] * len(sizes)
        each = (self.outside(size, trained=n, earlier=i) for i, (size, n) in enumerate(zip(sizes, rows, strict=True)))
        return self.outside_once(sizes[0], general) + sum(each)

    def _over(self, passes: int, size: int | None) -> int:
        """Return `passes`, reduced in proportion if the text has fewer than `samples` blocks."""
        samples = self.samples or passes
        return passes if size is None or size >= samples else -(-passes * size // samples)

    def saved(self, domains: int) -> int:
        """Return the bytes of memory saved with the stage after `domains` domains."""
        return self.disk_bytes + domains * self.disk_bytes_per_domain
