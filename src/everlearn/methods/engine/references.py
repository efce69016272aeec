"""Gradients of rows outside the batch, computed by the same distributed model, for gradient surgery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from everlearn.data.blocks import Block
from everlearn.methods.engine.processes import processes, rank
from everlearn.methods.gradients import Gradients
from everlearn.methods.stage import Stage
from everlearn.model.objectives import IGNORE
from everlearn.seeding import seeded


def reference_gradients(
    stage: Stage,
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    rows: Mapping[str, Sequence[Block]],
    backward: Callable[[Tensor], Any],
) -> dict[str, Gradients]:
    """Return the gradient of the mean loss over some rows, for each name; the current gradients are kept.

    Args:
        stage: its `batch_size` is the number of rows per pass on one process.
        model: the model in its distributed wrapper, synchronising.
        parameters: the trained parameters, by name.
        rows: rows by name, the same on every process.
        backward: runs the backward pass of a loss.
    """
    held = {name: parameter.grad for name, parameter in parameters.items()}
    result: dict[str, Gradients] = {}
    for name, blocks in rows.items():
        if not blocks:
            continue
        for parameter in parameters.values():
            parameter.grad = None
        # Under a separate seed, so that the dropout of the training does not change.
        with seeded(stage.seed, stage.index, "reference", name, stage.step, rank()):
            for loss in _losses(stage, model, name, blocks):
                backward(loss)
        result[name] = Gradients.of(parameters, copy=True)
    for name, parameter in parameters.items():
        parameter.grad = held[name]
    return result


def _losses(stage: Stage, model: nn.Module, name: str, blocks: Sequence[Block]) -> Any:
    """Yield this process's parts of the mean loss, equally many on every process.

    Averaged over processes, they sum to the mean loss.
    """
    # A row gets a new mask at each step, which does not depend on its process.
    numbers = list(range(stage.step * len(blocks), (stage.step + 1) * len(blocks)))
    objective = stage.objective.reseeded(stage.seed, stage.index, "reference", name)
    device = next(stage.model.parameters()).device
    full_batch = {key: value.to(device) for key, value in objective.collate(list(blocks), numbers).items()}
    items = (full_batch["labels"] != IGNORE).sum().clamp(min=1)
    for start in range(0, len(blocks), stage.batch_size * processes()):
        mine = slice(start + rank() * stage.batch_size, start + (rank() + 1) * stage.batch_size)
        batch = {key: value[mine] for key, value in full_batch.items()}
        weight = processes()
        if not len(batch["labels"]):  # no rows are left for this process, which must take part nevertheless
            batch, weight = {key: value[:1] for key, value in full_batch.items()}, 0
        yield objective.forward(model, batch, summed=True).losses.sum() * (weight / items)
