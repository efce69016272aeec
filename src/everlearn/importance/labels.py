"""Labels sampled from the model, for the true Fisher information."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from everlearn.importance.moments import Batch
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from everlearn.model.objectives import Objective


def labels_of_the_model(
    model: nn.Module, batches: Iterable[Batch], objective: Objective, *seed: object
) -> Iterator[dict[str, Tensor]]:
    """Yield the batches with labels sampled from the predictions of the model, for :func:`fisher`.

    The true Fisher information is E_x E_{y ~ p(·|x)} [(∂ log p(y|x)/∂θ)²], estimated with one sample of y for every
    text x of the data. Each label is sampled given the text of the data: the tokens before it (causal), around it
    (masked), or the prompt and the answer so far (text-to-text). This costs one additional forward pass.

    Args:
        model: the model, in the mode in which it predicts.
        batches: as from the objective's `collate`.
        objective: locates the labels and runs the model.
        seed: parts of the seed; row k of all batches samples from (seed, k), independently of the batch size.
    """
    row = 0
    for batch in batches:
        rows, width = batch["labels"].shape
        chances = np.stack(
            [
                np.random.Generator(np.random.PCG64(seed_for(*seed, "labels", row + i))).random(width)
                for i in range(rows)
            ]
        )
        row += rows
        with torch.autocast(batch["labels"].device.type, enabled=False):
            labels = objective.drawn_labels(model, batch, torch.from_numpy(chances))
        yield {**batch, "labels": labels}
