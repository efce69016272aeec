"""Score every token of a text's passages with a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from everlearn.diagnostics.diff.passages import Rows
from everlearn.errors import ModelError
from everlearn.model.objectives import IGNORE, Objective
from everlearn.predictors.predictor import at_rest


@dataclass(frozen=True)
class TokenLosses:
    """A model's losses on passages; each attribute has one array per passage, with one entry per token.

    Attributes:
        ids: the tokens.
        nats: loss of each token; NaN if it was not scored (for a masked model, if it was not masked).
        guess: the likeliest token in its place.
    """

    ids: list[NDArray[np.int64]]
    nats: list[NDArray[np.float64]]
    guess: list[NDArray[np.int64]]

    def sums(self) -> NDArray[np.float64]:
        """Return the nats of each passage's scored tokens and their number, [2, passages]."""
        return np.array([[np.nansum(own), np.count_nonzero(~np.isnan(own))] for own in self.nats], float).T

    def same_tokens(self, other: TokenLosses) -> bool:
        """Return whether both have the same tokens, so that these can be compared one by one."""
        return all(np.array_equal(one, its) for one, its in zip(self.ids, other.ids, strict=True))


def score(
    model: nn.Module,
    objective: Objective,
    rows: Rows,
    ids: Sequence[Sequence[int]],
    *,
    name: str,
    batch_size: int,
    device: torch.device,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
) -> TokenLosses:
    """Score rows in evaluation mode; a masked model has the same tokens masked each time.

    Args:
        model: the model, on the device.
        objective: collates the rows; masks are seeded by the number of the row.
        rows: passages as rows.
        ids: the tokens of each passage.
        name: name of the model, for the error.
        batch_size: rows in a forward pass.
        device: device of the batches.
        bf16: compute in bfloat16; the weights are unchanged.
        progress: called with the number of rows done.

    Raises:
        ModelError: a loss is not finite.
    """
    offsets = np.cumsum([0, *map(len, ids)])
    flat = np.full((2, offsets[-1]), np.nan)
    with at_rest([model], device, bf16):
        for start in range(0, len(rows.blocks), batch_size):
            numbers = range(start, min(start + batch_size, len(rows.blocks)))
            batch = objective.collate([rows.blocks[number] for number in numbers], numbers)
            two = objective.likeliest(model, {key: x.to(device) for key, x in batch.items()})[:2].cpu().numpy()
            row, label = np.nonzero((batch["labels"] != IGNORE).numpy())
            # Without positions each label is one place before its token.
            column = batch["positions"].numpy()[row, label] if "positions" in batch else label + 1
            at = row + start, column
            owned = rows.passage[at] >= 0
            place = offsets[rows.passage[at][owned]] + rows.place[at][owned]
            flat[:, place] = two[:, row[owned], label[owned]]
            if not np.isfinite(flat[:, place]).all():
                raise ModelError(
                    f"The loss of '{name}' on the text is not finite: its weights are broken. Compare another model."
                )
            if progress is not None:
                progress(numbers.stop)
    flat[1, np.isnan(flat[0])] = -1
    nats, guess = (np.split(part, offsets[1:-1]) for part in flat)
    return TokenLosses([np.asarray(own, np.int64) for own in ids], nats, [g.astype(np.int64) for g in guess])
