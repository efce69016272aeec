"""What a language model says where its objective has labels, made of its last hidden state."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from everlearn.model.anatomy import head_path
from everlearn.model.objectives import IGNORE, Objective, unwrap


def at_labels(hidden: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The last hidden state [B, S, H] where labels are predicted, [B, K, H]."""
    if "positions" not in batch:
        return hidden
    return hidden.gather(1, batch["positions"][:, :, None].expand(-1, -1, hidden.shape[-1]))


def vocabulary_head(model: nn.Module) -> nn.Module:
    """The module that makes logits of the last hidden state."""
    core = unwrap(model)
    return core.get_submodule(head_path(core))


def row_means(values: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labelled positions of each row, [B], of values [B, K]."""
    counted = labels != IGNORE
    return (values * counted).sum(1) / counted.sum(1).clamp(min=1)


def output_size(objective: Objective, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Squared norm of the logits, mean over the labelled positions of each row, [B]."""
    hidden = objective.hidden(model, objective.inputs(batch))
    logits: Tensor = vocabulary_head(model)(at_labels(hidden, batch)).float()
    return row_means(logits.square().sum(-1), batch["labels"])
