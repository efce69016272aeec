"""Losses of a model on fixed held-out blocks, from which bits per byte, loss and perplexity are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from everlearn.errors import TrainingDiverged
from everlearn.model.objectives import IGNORE, Objective
from everlearn.predictors.predictor import Checkpoint, Predictor, at_rest, models_of

Advance = Callable[[int], None]
"""Called with the number of completed blocks."""


class Blocks(Protocol):
    """Fixed blocks that can be taken by number; :class:`everlearn.data.blocks.PackedBlocks` is one."""

    def __len__(self) -> int: ...

    def take(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """Return blocks by their numbers."""


class BlockLosses(NamedTuple):
    """Losses by block.

    Attributes:
        nats: sum over the block's labels, float64 [n].
        items: number of labels, int64 [n].
        content_nats: sum over the labels that are content, float64 [n]; None if not requested.
        content_items: number of these, int64 [n].
    """

    nats: NDArray[np.float64]
    items: NDArray[np.int64]
    content_nats: NDArray[np.float64] | None = None
    content_items: NDArray[np.int64] | None = None

    def part(self, start: int, stop: int) -> BlockLosses:
        """Return the losses of some of the blocks."""
        columns: list[Any] = [None if each is None else each[start:stop] for each in self]
        return BlockLosses(*columns)

    @classmethod
    def joined(cls, parts: Sequence[BlockLosses]) -> BlockLosses:
        """Return the losses of several parts, concatenated."""
        columns = zip(*parts, strict=True)
        joined: list[Any] = [None if column[0] is None else np.concatenate(column) for column in columns]
        return cls(*joined)


def block_losses(
    model: nn.Module,
    blocks: Blocks,
    objective: Objective,
    *,
    batch_size: int,
    max_blocks: int | None = None,
    bf16: bool = False,
    progress: Advance | None = None,
) -> BlockLosses:
    """Return :func:`losses_of` one model, on its device."""
    return losses_of(
        Checkpoint(model, objective),
        blocks,
        objective,
        batch_size=batch_size,
        device=next(model.parameters()).device,
        max_blocks=max_blocks,
        bf16=bf16,
        progress=progress,
    )


def losses_of(
    predictor: Predictor,
    blocks: Blocks,
    objective: Objective,
    *,
    batch_size: int,
    device: torch.device | str,
    max_blocks: int | None = None,
    bf16: bool = False,
    progress: Advance | None = None,
    without_content: Tensor | None = None,
) -> BlockLosses:
    """Score blocks in evaluation mode; the mode of every model is restored afterwards.

    Rows are numbered from 0, so a masked model has the same masked positions at every checkpoint and for every method:
    checkpoints can be compared in pairs, block by block.

    Args:
        predictor: the predictor to score.
        blocks: the held-out set.
        objective: collates the blocks.
        batch_size: blocks per forward pass.
        device: device of the batches.
        max_blocks: score only this many first blocks.
        bf16: compute in bfloat16 (autocast); losses are float32 and their sums float64 in any case.
        progress: called with the number of completed blocks.
        without_content: tokens that are not content, bool [V]; sums over the other labels are returned too.

    Raises:
        TrainingDiverged: a loss is not finite.
    """
    device = torch.device(device)
    total = len(blocks) if max_blocks is None else min(max_blocks, len(blocks))
    parts = []
    with at_rest(models_of(predictor), device, bf16):
        for start in range(0, total, batch_size):
            rows = range(start, min(start + batch_size, total))
            batch = {key: value.to(device) for key, value in objective.collate(blocks.take(rows), rows).items()}
            without = None if without_content is None else without_content.expand(len(rows), -1)
            parts.append(batch_losses(predictor, batch, objective, without))
            if progress is not None:
                progress(rows.stop)
    losses = BlockLosses.joined(parts) if parts else BlockLosses(np.zeros(0), np.zeros(0, np.int64))
    check_finite(losses)
    return losses


def batch_losses(
    predictor: Predictor, batch: Mapping[str, Tensor], objective: Objective, without_content: Tensor | None = None
) -> BlockLosses:
    """Return the losses of the rows of a batch.

    Args:
        predictor: in evaluation mode (:func:`everlearn.predictors.predictor.at_rest`).
        batch: on the device.
        objective: counts the labels.
        without_content: for each row, the tokens that are not content, bool [B, V]; sums over the other labels are
            returned too.
    """
    count = objective.items(batch).to(torch.int64)
    items = count.cpu().numpy()
    if without_content is None:
        return BlockLosses((predictor.row_losses(batch).double() * count).cpu().numpy(), items)
    losses, labels = predictor.label_losses(batch).double(), batch["labels"]
    content = (labels != IGNORE) & ~without_content.to(labels.device).gather(1, labels.clamp(min=0))
    each = (losses.sum(1), (losses * content).sum(1), content.sum(1))
    nats, content_nats, content_items = (column.cpu().numpy() for column in each)
    return BlockLosses(nats, items, content_nats, content_items)


def check_finite(losses: BlockLosses) -> None:
    """Raise ``TrainingDiverged`` if a loss is not finite."""
    if not np.isfinite(losses.nats).all():
        block = int(np.flatnonzero(~np.isfinite(losses.nats))[0])
        raise TrainingDiverged(
            f"The model's loss on held-out block {block} is not finite: its weights are broken. Lower "
            "`train.learning_rate` and run the stage again."
        )
