"""What layers read of a text: rows that are run for hooks, and second moments of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.data.blocks import BlockSource
from everlearn.methods.base import Batch, Stage
from everlearn.model.content import CONTENT
from everlearn.model.objectives import IGNORE
from everlearn.model.training_mode import evaluating


def read_rows(stage: Stage, samples: int, source: BlockSource | None) -> None:
    """Run rows through the model for hooks that observe it, one at a time and without padding, as PEFT's hooks require.

    Without a source they are rows of the domain.
    """
    with evaluating(stage.model), torch.no_grad():
        for row in replace(stage, batch_size=1).batches(samples, source):
            stage.objective.forward(stage.model, _unpadded(row))


def second_moments(
    stage: Stage, layers: Mapping[str, nn.Module], samples: int, source: BlockSource | None
) -> dict[str, Tensor]:
    """Return X Xᵀ of the inputs X of each layer, [d_in, d_in]; in float64, since small eigenvalues may be needed."""
    moments: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for path, layer in layers.items():

            def add(layer: nn.Module, inputs: tuple[Any, ...], path: str = path) -> None:
                x = inputs[0].detach().flatten(0, -2).double()
                moments[path] = moments.get(path, 0) + x.T @ x

            hooks.enter_context(layer.register_forward_pre_hook(add))
        read_rows(stage, samples, source)
    return moments


def _unpadded(row: Batch) -> Batch:
    """Remove the padding of a row, which must not be read as text."""
    if CONTENT in row:
        width = int(row[CONTENT][0].nonzero()[-1]) + 1
        masks = {name: value[..., :width, :width] for name, value in row.items() if value.dim() == 4}
        return {n: v if n in ("labels", "positions") else v[:, :width] for n, v in row.items()} | masks
    if "decoder_input_ids" not in row:
        return row
    prompt, answer = int(row["attention_mask"].sum()), int((row["labels"] != IGNORE).sum())
    lengths = {"input_ids": prompt, "attention_mask": prompt}
    return {name: value[:, : lengths.get(name, answer)] for name, value in row.items()}
