"""Several held-out sets in one pass over a checkpoint: batches go on across sets, so that none is small.

Of 200 domains with a few blocks each, a pass for each set would leave most batches half empty. What is in a batch
follows from the sets and their order alone, not from what is measured already: a run that was killed between two sets
gets the same scores as one that was not.
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
    """A set under way.

    Attributes:
        task: it.
        wanted: whether its scores are to be kept.
        without: its tokens that are no content, bool [V]; None where content is not asked for.
        found: losses of its first blocks.
    """

    task: HeldOutText
    wanted: bool
    without: Tensor | None
    found: list[BlockLosses] = field(default_factory=list)


def measure_together(
    sets: Iterable[tuple[HeldOutText, bool]],
    predictor: Predictor,
    how: Conditions,
    keep: Callable[[Cell], None],
    more: Callable[[int], None] = lambda blocks: None,
) -> None:
    """Score the held-out sets that are wanted.

    Args:
        sets: every set, and whether it is wanted; the others only fill their places in the batches. They are taken one
            after another, and no more of them are held than share a batch.
        predictor: the same for all of them.
        how: as for :meth:`HeldOutText.measure`, which gives the same scores to the last bits but one.
        keep: is given each wanted set's cell as soon as its last block is scored.
        more: is told of every batch how many blocks of wanted sets it had.

    Raises:
        TrainingDiverged: a loss is not finite.
    """
    lot: list[tuple[_Set, int]] = []
    with at_rest(models_of(predictor), how.device, how.bf16):
        for task, wanted in sets:
            own = _Set(task, wanted, task.without_content(how.tokenizer) if wanted else None)
            for number in range(len(task.held_out.blocks)):
                lot.append((own, number))
                if len(lot) == how.batch_size:
                    _score(lot, predictor, how, keep)
                    more(sum(each.wanted for each, _ in lot))
                    lot = []
        _score(lot, predictor, how, keep)
        more(sum(each.wanted for each, _ in lot))


def _score(lot: list[tuple[_Set, int]], predictor: Predictor, how: Conditions, keep: Callable[[Cell], None]) -> None:
    """One batch. A block's number in its own set seeds its masks."""
    if not any(own.wanted for own, _ in lot):
        return
    blocks = [own.task.held_out.blocks.take([number])[0] for own, number in lot]
    batch = {key: x.to(how.device) for key, x in how.objective.collate(blocks, [number for _, number in lot]).items()}
    masks = [own.without for own, _ in lot if own.without is not None]
    without = None
    if masks:
        longest = max(map(len, masks))
        empty = masks[0].new_zeros(0)
        rows = [own.without if own.without is not None else empty for own, _ in lot]
        without = torch.stack([torch.nn.functional.pad(mask, (0, longest - len(mask))) for mask in rows])
    found = batch_losses(predictor, batch, how.objective, without)
    start = 0
    for own in dict.fromkeys(own for own, _ in lot):
        stop = start + sum(each is own for each, _ in lot)
        own.found.append(found.part(start, stop))
        start = stop
        if own.wanted and sum(map(len, (part.nats for part in own.found))) == len(own.task.held_out.blocks):
            whole = BlockLosses.joined(own.found)
            check_finite(whole)
            keep(own.task.cell(whole, how))
