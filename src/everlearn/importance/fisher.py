"""Diagonal of the empirical Fisher information from per-sample gradients (EWC: arXiv 1612.00796)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from everlearn.importance.gradient_moments import Batch, PerSampleLoss, gradient_moment


def fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    names: Sequence[str] | None = None,
    batch_means: bool = False,
) -> dict[str, Tensor]:
    """Return the mean over samples of the squared gradient of each sample's loss.

    The squared gradient of the mean loss of a batch of B rows would be about B times too small, because independent
    gradients cancel in it. Here the gradient of every sample is squared separately, with one forward and one backward
    pass per batch (:mod:`everlearn.importance.per_sample`). The first two samples are also measured one by one;
    parameters for which the results differ, or that are used in an unknown operation, get a backward pass for each
    sample. Autocast is off, ``.grad`` is never touched, and the model keeps its mode.

    With the labels of the data this is the empirical Fisher information. For the true one, pass batches whose labels
    are sampled from the model (:func:`everlearn.importance.labels_of_the_model`).

    Args:
        model: the model, at the weights to measure.
        batches: dicts of tensors with one row per sample.
        per_sample_loss: function of (model, batch) that returns one loss per row, [B]; the loss of a row must depend on
            that row alone.
        names: parameters to measure; None for all that are trainable.
        batch_means: compute Σ_b |b| (∇ mean loss of batch b)² / number of batches instead, like code without per-sample
            gradients (the DAS authors' EWC).

    Returns:
        Fisher diagonals by parameter name, float32, of the parameter's shape.

    Raises:
        MethodError: a name is not a trainable parameter, there is no batch, or a gradient is not finite.
    """
    return gradient_moment(model, batches, per_sample_loss, names, batch_means=batch_means)
