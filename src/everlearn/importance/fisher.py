"""Diagonal of the empirical Fisher information from per-sample gradients (EWC: arXiv 1612.00796)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError, did_you_mean

Batch = Mapping[str, Tensor]


def fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: Callable[[nn.Module, Batch], Tensor],
    names: Sequence[str] | None = None,
    batch_means: bool = False,
) -> dict[str, Tensor]:
    """Mean over samples of the squared gradient of each sample's loss.

    Squaring the gradient of a batch's mean instead is about B times too small, because independent gradients cancel
    in it. So every sample has a backward pass of its own; autocast is off, ``.grad`` is never touched, and the model
    stays in the mode that it came in.

    Args:
        model: the model, at the weights to measure.
        batches: dicts of tensors with one row per sample.
        per_sample_loss: (model, batch) to one loss per row, [B].
        names: parameters to measure; None for all that are trainable.
        batch_means: instead take Σ_b |b| (∇ mean loss of batch b)² / number of batches, as code that never looks at
            single samples does (the DAS authors' EWC). One backward pass a batch.

    Returns:
        Parameter name to its Fisher diagonal, float32, of the parameter's shape.

    Raises:
        MethodError: a name is not a trainable parameter, there is no batch, or a gradient is not finite.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name in names or ():
        if name not in trainable:
            raise MethodError(f"The model has no trainable parameter '{name}'.{did_you_mean(name, trainable)}")
    chosen = trainable if names is None else {name: trainable[name] for name in names}
    totals = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in chosen.items()}
    count = 0
    with torch.enable_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
        for batch in batches:
            rows = len(next(iter(batch.values())))
            parts = [batch] if batch_means else [{n: v[row : row + 1] for n, v in batch.items()} for row in range(rows)]
            for part in parts:
                loss = per_sample_loss(model, part).mean()
                gradients = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
                for total, gradient in zip(totals.values(), gradients, strict=True):
                    if gradient is not None:
                        total.add_(gradient.float().square(), alpha=rows if batch_means else 1)
            count += len(parts)
    if not count:
        raise MethodError("Fisher information cannot be measured without data: there was no batch.")
    for name, total in totals.items():
        total.div_(count)
        if not torch.isfinite(total).all():
            raise MethodError(f"The Fisher information of '{name}' is not finite: the model's loss overflows.")
    return totals
