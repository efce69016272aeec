"""Token blocks and their sources: endless iterators in an order seeded by (seed, pass), with a JSON state."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from everlearn.errors import DataError, RunError
from everlearn.seeding import seed_for

Block = dict[str, np.ndarray]
"""One training row: ``input_ids`` int32 [S]; ``segments`` int32 [S] when documents are packed; ``labels`` int32 [S] or
[T] with -100 where nothing is learnt, for text-to-text only."""


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths in one array: row i is ``values[offsets[i] : offsets[i + 1]]``.

    Attributes:
        values: int32 [total].
        offsets: int64 [N + 1], from 0 to total.
    """

    values: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]


Column = np.ndarray | Ragged
"""The same key of many blocks: [N, S], or rows of different lengths."""


def stack(blocks: Sequence[Block]) -> dict[str, Column]:
    """Return blocks as columns: a matrix where all rows are equally long, :class:`Ragged` otherwise.

    Blocks of plain text among blocks with answers have no labels; their tokens are used as labels.
    """
    columns: dict[str, Column] = {}
    for key in dict.fromkeys(key for block in blocks for key in block):
        rows = [block.get(key, block["input_ids"]) if key == "labels" else block[key] for block in blocks]
        if len({len(row) for row in rows}) == 1:
            columns[key] = np.stack(rows)
        else:
            offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
            columns[key] = Ragged(np.concatenate(rows), offsets)
    return columns


def tokens_in(block: Block) -> int:
    """Return the number of tokens of a block: its row, and for an encoder-decoder the row of its answer.

    In rows of another trainer without ``input_ids`` all columns count.
    """
    if "input_ids" not in block:
        return int(sum(column.size for column in block.values()))
    answer_apart = "labels" in block and "segments" not in block
    return int(block["input_ids"].size + (block["labels"].size if answer_apart else 0))


def hash_of(*parts: object) -> str:
    """Return a short hexadecimal digest of settings; it is equal exactly when their printed forms are."""
    return hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=16).hexdigest()


class BlockSource(ABC, Iterator[Block]):
    """An endless iterator of blocks. Its state is JSON, and the same state gives the same continuation.

    Attributes:
        name: name of the domain or mixture; part of every seed.
        size: blocks per pass; None when that is not known (streaming).
        block_tokens: tokens in every block; None when blocks differ.
        fingerprint: hash of text, tokenizer and settings.
        in_training_order: whether its blocks come in the order in which training takes them.
    """

    in_training_order: bool = True
    name: str
    size: int | None
    block_tokens: int | None
    fingerprint: str

    @property
    def passes(self) -> float | None:
        """Number of passes over the text so far; None when that is not known (streaming)."""
        return None

    def __iter__(self) -> Iterator[Block]:
        return self

    @abstractmethod
    def __next__(self) -> Block: ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position of the source, as JSON."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the position at which :meth:`state_dict` was called."""

    @abstractmethod
    def fresh(self, seed: int) -> BlockSource:
        """Return an independent source of the same blocks, from the start, in an order of its own."""

    def along(self, blocks: int) -> BlockSource:
        """Return the source for a domain that is learnt in so many blocks: shares may change along it."""
        return self

    def once(self, seed: int) -> Iterator[Block]:
        """Iterate over the first pass of the source that :meth:`fresh` returns."""
        return islice(self.fresh(seed), self.size)


class DeferredBlocks(BlockSource):
    """A source that is opened when it is first used, since a corpus that is not needed may no longer exist."""

    def __init__(self, name: str, opened: Callable[[], BlockSource]) -> None:
        self.name = name
        self._open = opened

    @cached_property
    def _source(self) -> BlockSource:
        return self._open()

    @property
    def size(self) -> int | None:  # type: ignore[override]
        return self._source.size

    @property
    def passes(self) -> float | None:
        return self._source.passes

    @property
    def block_tokens(self) -> int | None:  # type: ignore[override]
        return self._source.block_tokens

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return self._source.fingerprint

    def __next__(self) -> Block:
        return next(self._source)

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._source.load_state_dict(state)

    def fresh(self, seed: int) -> BlockSource:
        return self._source.fresh(seed)

    def along(self, blocks: int) -> BlockSource:
        return self._source.along(blocks)

    def once(self, seed: int) -> Iterator[Block]:
        return self._source.once(seed)


class PackedBlocks(BlockSource):
    """Tokenised blocks in memory or memory-mapped, in a new seeded order each pass."""

    def __init__(
        self, arrays: Mapping[str, Column], seed: int, name: str = "blocks", fingerprint: str | None = None
    ) -> None:
        """Take columns with the same number of rows.

        Args:
            arrays: key to rows, [N, S] or :class:`Ragged`. Each access looks them up again, so that a
                mapping may open files lazily.
            seed: seed of the order; pass p is a permutation seeded by (seed, name, p).
            name: name of the domain.
            fingerprint: fingerprint of the content; computed from the arrays when it is not given.

        Raises:
            DataError: there is no block, or the columns differ in length.
        """
        lengths = {key: len(column) for key, column in arrays.items()}
        if not any(lengths.values()):
            raise DataError(f"'{name}' holds no block to train on.")
        if len(set(lengths.values())) != 1:
            raise DataError(f"The columns of '{name}' must have equally many rows; they have {lengths}.")
        self.arrays = arrays
        self.seed = seed
        self.name = name
        self._fingerprint = fingerprint
        self._position = 0
        self._order: tuple[int, np.ndarray] | None = None
        self.size: int = next(iter(lengths.values()))
        ids = arrays.get("input_ids")
        answer_apart = "labels" in arrays and "segments" not in arrays
        self.block_tokens = int(ids.shape[1]) if isinstance(ids, np.ndarray) and not answer_apart else None

    @classmethod
    def from_blocks(cls, blocks: Iterable[Block], seed: int, name: str = "blocks") -> PackedBlocks:
        """Make a source of blocks that are held in memory."""
        return cls(stack(list(blocks)), seed, name)

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        """The fingerprint that was passed, or a digest of the content, computed on first use since it takes time."""
        if self._fingerprint is None:
            content = hashlib.blake2b(digest_size=16)
            for key in sorted(self.arrays):
                column = self.arrays[key]
                parts = (column.values, column.offsets) if isinstance(column, Ragged) else (column,)
                for part in parts:
                    content.update(f"{key} {part.dtype} {part.shape}".encode())
                    content.update(np.ascontiguousarray(part).data)
            self._fingerprint = content.hexdigest()
        return self._fingerprint

    @property
    def passes(self) -> float:
        return self._position / self.size

    def __len__(self) -> int:
        return self.size

    def take(self, indices: Iterable[int]) -> list[Block]:
        """Return copies of the blocks with these numbers, in their stored order."""
        return [{key: np.array(column[int(i)]) for key, column in self.arrays.items()} for i in indices]

    def order(self, number: int) -> np.ndarray:
        """Return the permutation of pass `number`, int64 [size]."""
        if self._order is None or self._order[0] != number:
            generator = np.random.Generator(np.random.PCG64(seed_for(self.seed, self.name, number)))
            self._order = (number, generator.permutation(self.size))
        return self._order[1]

    def __next__(self) -> Block:
        number, index = divmod(self._position, self.size)
        self._position += 1
        return self.take([self.order(number)[index]])[0]

    def state_dict(self) -> dict[str, Any]:
        """Return ``position``: the number of blocks given so far, over all passes."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the number of blocks in the state.

        Raises:
            RunError: the state belongs to another kind of source.
        """
        if set(state) != {"position"}:
            raise RunError(f"The saved data position of '{self.name}' is of another kind of source: {sorted(state)}.")
        self._position = int(state["position"])

    def fresh(self, seed: int) -> PackedBlocks:
        """Return a source of the same blocks, in an order that no training pass has, even with the run's own seed."""
        return PackedBlocks(self.arrays, seed_for("fresh", seed), self.name, self._fingerprint)
