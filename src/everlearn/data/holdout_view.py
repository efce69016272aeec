"""A source without some of its blocks: what is held out is given in no pass and in no order."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from everlearn.data.blocks import Block, BlockSource, hash_of
from everlearn.errors import DataError


class Without(BlockSource):
    """The blocks of a source except some.

    A block is recognised by all that it holds, its answer included: exact copies of a block that is left out are left
    out too, another answer to the same prompt stays.

    Attributes:
        size: blocks of a pass that are left; None where the source does not know its own size.
    """

    def __init__(self, source: BlockSource, blocks: Iterable[Block]) -> None:
        """Leave `blocks` out of `source`, of which one pass is read to count what is left.

        Raises:
            DataError: nothing is left.
        """
        self._source, self._apart = source, frozenset(_mark(block) for block in blocks)
        self.name = source.name
        self.size = None if source.size is None else sum(1 for _ in self.once(0))
        if self.size == 0:
            raise DataError(
                f"All {source.size} rows of '{self.name}' are equal to rows that are held out to measure on: none is "
                "left to learn from. Add text, or hold out fewer rows."
            )

    @property
    def passes(self) -> float | None:
        """Of the source."""
        return self._source.passes

    @property
    def block_tokens(self) -> int | None:  # type: ignore[override]
        """Of the source."""
        return self._source.block_tokens

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """Of the source and of what is left out."""
        return hash_of(self._source.fingerprint, "without", *sorted(mark.hex() for mark in self._apart))

    def __next__(self) -> Block:
        return next(block for block in self._source if _mark(block) not in self._apart)

    def once(self, seed: int) -> Iterator[Block]:
        """Iterate over one pass of the source, except the blocks left out."""
        return (block for block in self._source.once(seed) if _mark(block) not in self._apart)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the source."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of the source."""
        self._source.load_state_dict(state)

    def fresh(self, seed: int) -> Without:
        """Leave the same blocks out of an independent source."""
        other = copy.copy(self)
        other._source = self._source.fresh(seed)
        return other


def _mark(block: Block) -> bytes:
    parts = (part for key in sorted(block) for part in (key.encode(), np.ascontiguousarray(block[key]).tobytes()))
    return b"\0".join(parts)
