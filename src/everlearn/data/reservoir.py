"""Keep a fixed number of blocks that are a uniform sample of all blocks seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from everlearn.data.blocks import Block, PackedBlocks, stack
from everlearn.data.column_tensors import from_tensors, to_tensors
from everlearn.errors import DataError, RunError
from everlearn.seeding import seed_for


class Reservoir:
    """Reservoir sampling (Vitter, "Random sampling with a reservoir", ACM TOMS 11, 1985, algorithm R).

    After n blocks each of them is kept with probability capacity / n, whatever its domain and the number of domains.

    Attributes:
        capacity: maximum number of blocks.
        seen: number of blocks offered so far.
        blocks: the stored blocks.
        domains: the domain of each of them.
    """

    def __init__(self, capacity: int, seed: int) -> None:
        if capacity < 1:
            raise DataError(f"A reservoir must hold at least 1 block; its capacity is {capacity}.")
        self.capacity = capacity
        self.seed = seed
        self.seen = 0
        self.blocks: list[Block] = []
        self.domains: list[str] = []

    def __len__(self) -> int:
        return len(self.blocks)

    def add(self, block: Block, domain: str) -> None:
        """Offer one block to the sample."""
        # The draw depends on the count alone, so that only the count must be saved to continue exactly.
        place = seed_for(self.seed, "reservoir", self.seen) % (self.seen + 1)
        self.seen += 1
        if len(self.blocks) < self.capacity:
            self.blocks.append(block)
            self.domains.append(domain)
        elif place < self.capacity:
            self.blocks[place], self.domains[place] = block, domain

    def extend(self, blocks: Iterable[Block], domain: str) -> None:
        """Offer all blocks of a domain to the sample."""
        for block in blocks:
            self.add(block, domain)

    def source(self, seed: int, name: str = "replay") -> PackedBlocks:
        """Return the kept blocks as a source.

        Raises:
            DataError: nothing is kept yet.
        """
        return PackedBlocks.from_blocks(self.blocks, seed, name)

    def to_memory(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return named tensors and JSON facts from which :meth:`from_memory` makes the same reservoir."""
        facts = {"capacity": self.capacity, "seed": self.seed, "seen": self.seen, "domains": list(self.domains)}
        return to_tensors(stack(self.blocks)), facts

    @classmethod
    def from_memory(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Reservoir:
        """Restore the reservoir that :meth:`to_memory` described.

        Raises:
            RunError: blocks and domains differ in number.
        """
        reservoir = cls(int(facts["capacity"]), int(facts["seed"]))
        reservoir.seen, reservoir.domains = int(facts["seen"]), [str(domain) for domain in facts["domains"]]
        columns = from_tensors(tensors)
        if any(len(column) != len(reservoir.domains) for column in columns.values()):
            raise RunError("The saved reservoir is damaged: it does not have one domain for each block.")
        rows = range(len(reservoir.domains))
        reservoir.blocks = [{key: np.array(column[row]) for key, column in columns.items()} for row in rows]
        return reservoir
