"""Diagonal of the empirical Fisher information from per-sample gradients (EWC: arXiv 1612.00796)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from everlearn.importance.moments import Batch, PerSampleLoss, gradient_moment


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
    (:mod:`everlearn.importance.per_sample`). The first two samples are measured both ways; a parameter that does not
    come out the same, or that is used in a way that is not known, has a backward pass for each sample. Autocast is
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
    return gradient_moment(model, batches, per_sample_loss, names, batch_means=batch_means)
