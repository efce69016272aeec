"""A source without some of its blocks: held-out blocks appear in no pass and in no order."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import numpy as np

from everlearn.data.blocks import Block, BlockSource, DeferredBlocks, hash_of
from everlearn.errors import DataError


class Without(DeferredBlocks):
    """The blocks of a source except some.

    Blocks are compared by their complete content: exact copies of an excluded block are excluded too, but not another
    answer to the same prompt.
    """

    def __init__(self, source: BlockSource, blocks: Iterable[Block]) -> None:
        """Exclude `blocks` from `source`; one pass is read to count the remaining blocks.

        Raises:
            DataError: nothing is left.
        """
        super().__init__(source.name, lambda: source)
        self._apart = frozenset(_mark(block) for block in blocks)
        self._left = None if source.size is None else sum(1 for _ in self.once(0))
        if self._left == 0:
            raise DataError(
                f"All {source.size} rows of '{self.name}' are equal to rows that are held out to measure on: none is "
                "left to learn from. Add text, or hold out fewer rows."
            )

    @property
    def size(self) -> int | None:  # type: ignore[override]
        """Remaining blocks of a pass; None if the size of the source is not known."""
        return self._left

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return hash_of(self._source.fingerprint, "without", *sorted(mark.hex() for mark in self._apart))

    def __next__(self) -> Block:
        return next(block for block in self._source if _mark(block) not in self._apart)

    def once(self, seed: int) -> Iterator[Block]:
        return (block for block in self._source.once(seed) if _mark(block) not in self._apart)

    def fresh(self, seed: int) -> Without:
        return self._of(self._source.fresh(seed))

    def along(self, blocks: int) -> Without:
        return self._of(self._source.along(blocks))

    def _of(self, source: BlockSource) -> Without:
        """Return another source without the same blocks."""
        other = copy.copy(self)
        other._source = source
        return other


def _mark(block: Block) -> bytes:
    parts = (part for key in sorted(block) for part in (key.encode(), np.ascontiguousarray(block[key]).tobytes()))
    return b"\0".join(parts)
