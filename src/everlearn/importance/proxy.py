"""Importance for general knowledge without the data of pre-training (arXiv 2302.03241, eq. 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.gradient_moments import Batch
from everlearn.importance.units import Reduce, unit_importance
from everlearn.model.anatomy import Site
from everlearn.model.content import counted
from everlearn.model.objectives import Objective
from everlearn.model.training_mode import dropout_rates, evaluating, training

Text = Literal["plain", "masked"]
Representation = Literal["hidden", "logits"]
Softmax = Literal["features", "sequence"]


def general_importance(
    model: nn.Module,
    batches: Iterable[Batch],
    objective: Objective,
    sites: Sequence[Site] | None = None,
    reduce: Reduce = "abs_per_sample",
    *,
    dropout: bool = True,
    text: Text = "plain",
    representation: Representation = "hidden",
    softmax: Softmax = "features",
) -> dict[str, Tensor]:
    """Measure the importance of every unit for general knowledge on any text (arXiv 2302.03241, eq. 5).

    A text is run twice in one pass with independent dropout, and the difference between the two representations
    (:func:`proxy_kl_per_sample`) is differentiated: units for which the knowledge of the model is robust matter less.
    Both copies of a sample share its gates, so the absolute value is taken per sample. The model is in training mode
    during the passes only.

    Args:
        model: the model, at the weights to measure.
        batches: batches as collated by the objective.
        objective: provides the inputs of the model and the last hidden state.
        sites: sites of the units; None for all.
        reduce: see :func:`~everlearn.importance.units.unit_importance`.
        dropout: without it, as in the released code, the two passes are equal and the result is rounding noise.
        text: the text before masking (``plain_ids``) if a batch has it, or as the objective masked it.
        representation: the last hidden state, or the logits (which need memory for the whole vocabulary at every
            token).
        softmax: the axis of the distributions; the released code uses the positions.

    Returns:
        Importance by site name, [units] float32.

    Raises:
        MethodError: the model has no dropout (the proxy would be zero everywhere), there is no batch, or a gradient is
            not finite.
    """
    if dropout and not has_dropout(model):
        raise MethodError(
            "General importance compares two passes with different dropout, but this model has no dropout: every rate "
            "is 0, so the measure would be exactly zero. Give the model dropout (for example "
            "`model.config: {attention_dropout: 0.1}`), or do not ask for general importance."
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs = objective.inputs(batch)
        if text == "plain" and "plain_ids" in batch:
            inputs["input_ids"] = batch["plain_ids"]
        twice = {name: torch.cat([value, value]) for name, value in inputs.items()}
        if representation == "hidden":
            both = objective.hidden(model, twice)
        else:
            outputs: Any = model(**twice, **objective.options())
            both = outputs.logits
        first, second = both.chunk(2)
        # Exclude padding: in an answer the positions without a label, otherwise those without text.
        mask = batch["labels"] >= 0 if "decoder_input_ids" in inputs else counted(batch)
        return proxy_kl_per_sample(first, second, mask, softmax)

    with (training if dropout else evaluating)(model):
        return unit_importance(model, batches, loss, sites, reduce, copies=2)


def proxy_kl_per_sample(
    first: Tensor, second: Tensor, mask: Tensor | None = None, softmax: Softmax = "features"
) -> Tensor:
    """Return KL(p₁ ‖ p₂) between two representations of the same texts, for each sample.

    Args:
        first: representation of the first pass, [B, S, H].
        second: representation of the second pass, [B, S, H].
        mask: 1 for the tokens that count, [B, S]; None counts all.
        softmax: `features`: a distribution over the features for every token, averaged over tokens; `sequence`: a
            distribution over the tokens for every feature, averaged over features.

    Returns:
        Nats per token, or per feature, for each sample, [B].
    """
    first, second = first.float(), second.float()
    if softmax == "sequence":
        if mask is not None:
            hidden = mask[:, :, None] == 0
            first, second = (x.masked_fill(hidden, torch.finfo(torch.float32).min) for x in (first, second))
        p, q = F.log_softmax(first, dim=1), F.log_softmax(second, dim=1)
        return (p.exp() * (p - q)).sum(1).mean(-1)
    p, q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    tokens = (p.exp() * (p - q)).sum(-1)
    if mask is None:
        return tokens.mean(1)
    return (tokens * mask).sum(1) / mask.sum(1).clamp(min=1)


def has_dropout(model: nn.Module) -> bool:
    """Return whether any dropout rate is above 0, in a dropout module or in functional dropout."""
    return any(True for _ in dropout_rates(model))
