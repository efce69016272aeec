"""Make batches from block sources: the same for any number of processes, and resumable at any batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from everlearn.data.blocks import Block, BlockSource, tokens_in
from everlearn.errors import DataError, RunError

if TYPE_CHECKING:
    Batches = IterableDataset[dict[str, Tensor]]
else:
    Batches = IterableDataset


class Collate(Protocol):
    """The part of an objective that the loader needs."""

    def collate(self, blocks: list[Block], rows: list[int]) -> dict[str, Tensor]:
        """Make one batch from blocks and their global row numbers."""


class BlockLoader(Batches):
    """An iterable of whole batches, for ``DataLoader(batch_size=None, num_workers=0)``.

    Batch i on rank r of W holds the rows ``i·B·W + r·B`` to ``i·B·W + (r + 1)·B`` of the source. Every rank walks the
    whole source and keeps its rows, so the state is the same on every rank.
    """

    ANCHOR_EVERY = 100
    """Number of batches between two saved source states, so :meth:`state_dict` can go back at least this far."""

    def __init__(
        self, source: BlockSource, objective: Collate, batch_size: int, batches: int, rank: int = 0, world_size: int = 1
    ) -> None:
        """Prepare `batches` batches of `batch_size` rows for this rank, from where the source is now."""
        self.source = source
        self.objective = objective
        self.batch_size = batch_size
        self.batches = batches
        self.rank = rank
        self.world_size = world_size
        self.index = 0
        self.tokens = 0
        """Tokens read so far, of all ranks."""
        self._anchors: deque[tuple[int, int, dict[str, Any]]] = deque([(0, 0, source.state_dict())], maxlen=2)

    def __len__(self) -> int:
        """Return the total number of batches, whatever the current position."""
        return self.batches

    def _read(self) -> list[Block]:
        if self.index - self._anchors[-1][0] >= self.ANCHOR_EVERY:
            self._anchors.append((self.index, self.tokens, self.source.state_dict()))
        self.index += 1
        blocks = [next(self.source) for _ in range(self.batch_size * self.world_size)]
        self.tokens += sum(tokens_in(block) for block in blocks)
        return blocks

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Iterate over the batches from the current one to the last.

        Raises:
            DataError: it runs in a worker process, where its state would be lost.
        """
        if get_worker_info() is not None:
            raise DataError("Batches are made in the training process: set `dataloader_num_workers` to 0.")
        mine = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        while self.index < self.batches:
            first = self.index * self.batch_size * self.world_size
            blocks = self._read()
            rows = range(first, first + len(blocks))
            yield self.objective.collate(blocks[mine], list(rows[mine]))

    def state_dict(self, batch: int | None = None) -> dict[str, Any]:
        """Return the state in which batch number `batch` is the next one.

        Args:
            batch: up to :attr:`ANCHOR_EVERY` batches back; None is the first batch that was not read yet. A trainer
                that reads ahead (accelerate prefetches one batch) must say how many it has trained on.

        Returns:
            JSON: ``batch``, ``source``, the batch number at which the source's state was taken, and tokens read then.

        Raises:
            RunError: the batch is further back than is remembered, or not read yet.
        """
        batch = self.index if batch is None else batch
        if batch == self.index:
            return {"batch": batch, "source": self.source.state_dict(), "source_at": batch, "tokens": self.tokens}
        for at, tokens, state in reversed(self._anchors):
            if at <= batch < self.index:
                return {"batch": batch, "source": state, "source_at": at, "tokens": tokens}
        known = f"{self._anchors[0][0]} to {self.index}"
        raise RunError(f"The data position of batch {batch} is not known; batches {known} are.")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the saved batch."""
        self.source.load_state_dict(state["source"])
        self.index = int(state["source_at"])
        self.tokens = int(state["tokens"])
        self._anchors = deque([(self.index, self.tokens, dict(state["source"]))], maxlen=2)
        while self.index < int(state["batch"]):
            self._read()


def sample_batches(
    source: BlockSource, objective: Collate, *, blocks: int, batch_size: int, seed: int, device: torch.device | str
) -> Iterator[dict[str, Tensor]]:
    """Yield batches of the first `blocks` blocks of an independent seeded pass; the source itself does not advance.

    Args:
        source: source of the blocks; at most one pass of it is read.
        objective: makes batches of them.
        blocks: maximum number of blocks.
        batch_size: rows per batch; the last may have fewer.
        seed: seed of the order.
        device: device of the tensors.
    """
    pass_, start = islice(source.once(seed), blocks), 0
    while rows := list(islice(pass_, batch_size)):
        batch = objective.collate(rows, list(range(start, start + len(rows))))
        start += len(rows)
        yield {key: tensor.to(device) for key, tensor in batch.items()}
