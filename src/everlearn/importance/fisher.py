"""Diagonal of the empirical Fisher information from per-sample gradients (EWC: arXiv 1612.00796)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError, did_you_mean
from everlearn.importance.squares import Batch, BatchedSquares, PerSampleLoss, add_square, rows_of


def fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    names: Sequence[str] | None = None,
    batch_means: bool = False,
) -> dict[str, Tensor]:
    """Mean over samples of the squared gradient of each sample's loss.

    Squaring the gradient of a batch's mean instead is about B times too small, because independent gradients cancel
    in it. The squares are those of every sample by itself, from one forward and one backward pass for each batch
    (:mod:`everlearn.importance.per_sample`); the first two samples are measured both ways, and a parameter that does
    not come out the same, or that is used in a way that is not known, has a backward pass for each sample. Autocast is
    off, ``.grad`` is never touched, and the model stays in the mode that it came in.

    With the data's labels this is the empirical Fisher information. For the true one give batches whose labels the
    model has drawn (:func:`everlearn.importance.labels_of_the_model`).

    Args:
        model: the model, at the weights to measure.
        batches: dicts of tensors with one row per sample.
        per_sample_loss: (model, batch) to one loss per row, [B]; a row's loss must depend on that row alone.
        names: parameters to measure; None for all that are trainable.
        batch_means: instead take Σ_b |b| (∇ mean loss of batch b)² / number of batches, as code that never looks at
            single samples does (the DAS authors' EWC).

    Returns:
        Parameter name to its Fisher diagonal, float32, of the parameter's shape.

    Raises:
        MethodError: a name is not a trainable parameter, there is no batch, or a gradient is not finite.
    """
    chosen = parameters_to_measure(model, names)
    totals = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in chosen.items()}
    batched = BatchedSquares(model, chosen, per_sample_loss, totals)
    count = 0
    with torch.enable_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
        for batch in batches:
            if batch_means:
                add_square(model, batch, per_sample_loss, totals, chosen, weight=rows_of(batch))
            else:
                batched.add(batch)
            count += 1 if batch_means else rows_of(batch)
    if not count:
        raise MethodError("Fisher information cannot be measured without data: there was no batch.")
    for name, total in totals.items():
        # A sum of squares whose terms came apart: rounding may leave a trace below 0.
        total.div_(count).clamp_(min=0)
        if not torch.isfinite(total).all():
            raise MethodError(f"The Fisher information of '{name}' is not finite: the model's loss overflows.")
    return totals


def parameters_to_measure(model: nn.Module, names: Sequence[str] | None) -> dict[str, nn.Parameter]:
    """The trainable parameters of these names, or all.

    Raises:
        MethodError: a name is not a trainable parameter.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name in names or ():
        if name not in trainable:
            raise MethodError(f"The model has no trainable parameter '{name}'.{did_you_mean(name, trainable)}")
    return trainable if names is None else {name: trainable[name] for name in names}
