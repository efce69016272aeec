"""Outputs for methods when an external trainer runs the forward pass: views, and hidden states on demand."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.model.gates import row_gates
from everlearn.model.objectives import IGNORE, Batch, Objective, Outputs, View


class OutputsBeside(Outputs):
    """Outputs without losses, which the external trainer computes.

    Args:
        objective: reads the batch.
        model: the model without a distributed wrapper.
        batch: in the format of the objective.
        caught: last hidden state of the external pass, if it used the vocabulary head, [B, S, H].
        views: the views of all methods, which are run here in one pass.
    """

    def __init__(
        self, objective: Objective, model: nn.Module, batch: Batch, caught: Sequence[Tensor], views: Sequence[View]
    ) -> None:
        self._objective, self._model, self._batch, self._caught = objective, model, batch, list(caught)
        self.losses = torch.empty(0)
        self.items = (batch["labels"] != IGNORE).sum()
        if any(view.labels is not None for view in views):
            # A view's loss needs the logits, which the external pass does not expose.
            again = objective.forward(model, batch, views)
            self.views, self.view_losses = again.views, again.view_losses
        else:
            self.views = _hidden(objective, model, views) if views else []
            self.view_losses = [None] * len(views)

    @property
    def hidden(self) -> Tensor:  # type: ignore[override]
        """Last hidden state of the rows of the batch, which the vocabulary head reads, [B, S, H]."""
        # A head that is fused with the loss is not called, or only with some positions.
        positions = self._batch.get("decoder_input_ids", self._batch["input_ids"]).shape
        if not self._caught or self._caught[0].shape[:-1] != positions:
            self._caught[:] = [self._objective.hidden(self._model, self._objective.inputs(self._batch))]
        return self._caught[0]


def _hidden(objective: Objective, model: nn.Module, views: Sequence[View]) -> list[Tensor]:
    batches = [view.inputs for view in views if view.inputs is not None]  # views without their own rows have labels
    rows = [len(next(iter(batch.values()))) for batch in batches]
    inputs = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    gated: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if any(view.gates is not None for view in views):
        gated = row_gates(model, [(n, view.gates) for n, view in zip(rows, views, strict=True)])
    with gated:
        return list(objective.hidden(model, inputs).split(rows))
