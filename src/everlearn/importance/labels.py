"""Labels that a model draws itself, for the true Fisher information."""

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
    """The same batches with labels drawn from the model's own predictions, for :func:`fisher`.

    The true Fisher information is E_x E_{y ~ p(·|x)} [(∂ log p(y|x)/∂θ)²], with one draw of y for every text x of the
    data. Each label is drawn given the data's text: the words before it (causal), around it (masked), or the prompt
    and the answer so far (text-to-text). It costs a forward pass more than the data's own labels.

    Args:
        model: the model, in the mode in which it is to predict.
        batches: as from the objective's `collate`.
        objective: says where the labels are and how the model is asked.
        seed: parts of the seed; row k of all batches draws from (seed, k), however the rows are cut into batches.
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
