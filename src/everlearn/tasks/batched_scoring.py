"""Score several held-out sets in one pass over a checkpoint, with batches that may span two sets.

With 200 domains of a few blocks each, a pass for each set would leave most batches half empty. The content of a batch
depends only on the sets and their order, not on earlier measurements: a run that was killed between two sets gets
the same scores as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from everlearn.evaluation.cell import Cell
from everlearn.evaluation.task import Conditions
from everlearn.predictors.block_losses import BlockLosses, batch_losses, check_finite
from everlearn.predictors.predictor import Predictor, at_rest, models_of
from everlearn.tasks.held_out import HeldOutText


@dataclass(eq=False)
class _Set:
    """Hold the state of a set that is being scored.

    Attributes:
        task: the held-out set.
        wanted: whether its scores are to be kept.
        without: tokens that are not content tokens, bool [V]; None if content tokens are not scored apart.
        losses: losses of the blocks scored so far.
    """

    task: HeldOutText
    needed: bool
    without: Tensor | None
    losses: list[BlockLosses] = field(default_factory=list)


def measure_together(
    sets: Iterable[tuple[HeldOutText, bool]],
    predictor: Predictor,
    how: Conditions,
    keep: Callable[[Cell], None],
    more: Callable[[int], None] = lambda blocks: None,
) -> None:
    """Score the held-out sets that are wanted.

    Args:
        sets: every set, and whether it is wanted. Sets that are not wanted only fill their places in the batches. Sets
            are read one after another, and only those that share a batch are held at a time.
        predictor: the predictor of all sets.
        how: conditions of the evaluation. :meth:`HeldOutText.measure` gives the same scores up to rounding.
        keep: called with the cell of each wanted set as soon as its last block is scored.
        more: called after each batch with its number of blocks of wanted sets.

    Raises:
        TrainingDiverged: a loss is not finite.
    """
    chunk: list[tuple[_Set, int]] = []
    with at_rest(models_of(predictor), how.device, how.bf16):
        for task, needed in sets:
            own = _Set(task, needed, task.without_content(how.tokenizer) if needed else None)
            for number in range(len(task.held_out.blocks)):
                chunk.append((own, number))
                if len(chunk) == how.batch_size:
                    _score(chunk, predictor, how, keep)
                    more(sum(each.needed for each, _ in chunk))
                    chunk = []
        _score(chunk, predictor, how, keep)
        more(sum(each.needed for each, _ in chunk))


def _score(chunk: list[tuple[_Set, int]], predictor: Predictor, how: Conditions, keep: Callable[[Cell], None]) -> None:
    """Score one batch; a block's number within its own set seeds its masks."""
    if not any(own.needed for own, _ in chunk):
        return
    blocks = [own.task.held_out.blocks.take([number])[0] for own, number in chunk]
    batch = {key: x.to(how.device) for key, x in how.objective.collate(blocks, [number for _, number in chunk]).items()}
    masks = [own.without for own, _ in chunk if own.without is not None]
    without = None
    if masks:
        longest = max(map(len, masks))
        empty = masks[0].new_zeros(0)
        rows = [own.without if own.without is not None else empty for own, _ in chunk]
        without = torch.stack([torch.nn.functional.pad(mask, (0, longest - len(mask))) for mask in rows])
    losses = batch_losses(predictor, batch, how.objective, without)
    start = 0
    for own in dict.fromkeys(own for own, _ in chunk):
        stop = start + sum(each is own for each, _ in chunk)
        own.losses.append(losses.part(start, stop))
        start = stop
        if own.needed and sum(map(len, (part.nats for part in own.losses))) == len(own.task.held_out.blocks):
            joined = BlockLosses.joined(own.losses)
            check_finite(joined)
            keep(own.task.cell(joined, how))
