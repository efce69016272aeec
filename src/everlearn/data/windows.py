"""Overlapping windows of packed text: every token is scored once, with the tokens before it as context.

Without overlap, the tokens at the beginning of a block are predicted from little or no context. Here a window advances
by `stride` tokens, and its first tokens serve only as context. (M2D2's own scripts have no overlap, and count the first
token of each window, which has no prediction.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from everlearn.data.blocks import Block, PackedBlocks

SCORED = "scored"
"""Column of a block: 1 where the token is a target, 0 where it is context of one."""


@dataclass(frozen=True)
class Windows:
    """Windows over the concatenated blocks of a text, each with as many tokens as a block.

    The first window scores all its tokens, every other one its last `stride` tokens, so each token of the text is
    scored once. An incomplete window at the end is dropped.

    Attributes:
        blocks: blocks of packed text, [n, S].
        stride: tokens by which a window moves on, 1 … S.
        end: id of the token that ends a document; a document that does not end in its block continues in the next.
    """

    blocks: PackedBlocks
    stride: int
    end: int

    def __len__(self) -> int:
        size = self._size
        return 1 + (len(self.blocks) * size - size) // self.stride

    def take(self, numbers: Iterable[int]) -> list[Block]:
        """Return the windows with these numbers."""
        return [self._window(int(number)) for number in numbers]

    @property
    def _size(self) -> int:
        size = self.blocks.block_tokens
        assert size is not None  # of packed text every block has as many tokens
        return size

    def _window(self, number: int) -> Block:
        size = self._size
        first, offset = divmod(number * self.stride, size)
        here, *more = self.blocks.take(range(first, first + (2 if offset else 1)))
        ids, segments = here["input_ids"][offset:], here["segments"][offset:]
        if more:
            last = segments[-1] + int(here["input_ids"][-1] == self.end)
            ids = np.concatenate([ids, more[0]["input_ids"][:offset]])
            segments = np.concatenate([segments, more[0]["segments"][:offset] + last])
        scored = np.ones(size, np.int32)
        if number:
            scored[: size - self.stride] = 0
        return {"input_ids": ids, "segments": segments - segments[0], SCORED: scored}
