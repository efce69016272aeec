"""Gradients of other rows than the batch's, along the same distributed path, for gradient surgery."""

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
    wanted: Mapping[str, Sequence[Block]],
    backward: Callable[[Tensor], Any],
) -> dict[str, Gradients]:
    """The gradient of the objective's mean over some rows, for each name; the gradients that were there stay.

    Args:
        stage: its `batch_size` is the number of rows in a pass of one process.
        model: in its distributed wrapper, synchronising.
        parameters: those that are trained, by name.
        wanted: rows by name, the same on every process.
        backward: differentiates a loss.
    """
    held = {name: parameter.grad for name, parameter in parameters.items()}
    found: dict[str, Gradients] = {}
    for name, blocks in wanted.items():
        if not blocks:
            continue
        for parameter in parameters.values():
            parameter.grad = None
        # Under a seed of its own: asking for a gradient changes nothing of the training's dropout.
        with seeded(stage.seed, stage.index, "reference", name, stage.step, rank()):
            for loss in _losses(stage, model, name, blocks):
                backward(loss)
        found[name] = Gradients.of(parameters, copy=True)
    for name, parameter in parameters.items():
        parameter.grad = held[name]
    return found


def _losses(stage: Stage, model: nn.Module, name: str, blocks: Sequence[Block]) -> Any:
    """This process's parts of the mean, as many on every process; averaged over processes they add up to it."""
    # A row is masked anew at each step, and the same on whichever process it is.
    numbers = list(range(stage.step * len(blocks), (stage.step + 1) * len(blocks)))
    objective = stage.objective.reseeded(stage.seed, stage.index, "reference", name)
    device = next(stage.model.parameters()).device
    whole = {key: value.to(device) for key, value in objective.collate(list(blocks), numbers).items()}
    items = (whole["labels"] != IGNORE).sum().clamp(min=1)
    for start in range(0, len(blocks), stage.batch_size * processes()):
        mine = slice(start + rank() * stage.batch_size, start + (rank() + 1) * stage.batch_size)
        batch = {key: value[mine] for key, value in whole.items()}
        weight = processes()
        if not len(batch["labels"]):  # nothing left for this process, which must take part all the same
            batch, weight = {key: value[:1] for key, value in whole.items()}, 0
        yield objective.forward(model, batch).losses.sum() * (weight / items)
