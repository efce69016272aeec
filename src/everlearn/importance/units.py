"""Importance of units: the mean over samples of |∂L/∂g| at g = 1 (arXiv 2302.03241, eq. 3)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.gradient_moments import Batch, PerSampleLoss
from everlearn.model.anatomy import Site
from everlearn.model.gates import Gates

Reduce = Literal["abs_per_sample", "signed_sum", "signed_cumulative"]


def unit_importance(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    sites: Sequence[Site] | None = None,
    reduce: Reduce = "abs_per_sample",
    copies: int = 1,
) -> dict[str, Tensor]:
    """Measure the importance of every unit for a loss, exactly per sample, with one backward pass per batch.

    Each row of a batch has its own gates, so the gradient of the summed loss with respect to them holds the gradient of
    each sample. Parameters are not differentiated, autocast is off, and the mode (training or evaluation) and the
    gradients of the model are kept.

    Args:
        model: the model, at the weights to measure.
        batches: dicts of tensors with one row per sample.
        per_sample_loss: function of (model, batch) that returns one loss per row, [B]; the loss of a row must depend on
            that row alone.
        sites: sites of the units; None for all.
        reduce: `abs_per_sample` is the paper's (1/N) Σ_n |∂L_n/∂g| (eq. 3); `signed_sum` is Σ_n ∂L_n/∂g, whose absolute
            value is taken only after normalising; `signed_cumulative` is as in the released code: its gradients are
            never zeroed, so the mean gradient of batch k of S counts S − k + 1 times.
        copies: how many copies of a batch the loss runs one after another; those of a row share its gates.

    Returns:
        Importance by site name, [units] float32.

    Raises:
        MethodError: there is no batch, or a gradient is not finite.
    """
    totals: dict[str, Tensor] = {}
    so_far: dict[str, Tensor] = {}
    samples = 0
    with Gates(model, sites) as gates, without_parameter_gradients(model):
        for batch in batches:
            tensor = next(iter(batch.values()))
            leaves = {
                site.name: torch.ones(len(tensor), site.units, device=tensor.device, requires_grad=True)
                for site in gates.sites
            }
            gates.set({name: leaf.repeat(copies, 1) if copies > 1 else leaf for name, leaf in leaves.items()})
            loss = per_sample_loss(model, batch)
            gradients = torch.autograd.grad(loss.sum(), list(leaves.values()), materialize_grads=True)
            for name, gradient in zip(leaves, gradients, strict=True):
                part = (gradient.abs() if reduce == "abs_per_sample" else gradient).sum(0)
                if reduce == "signed_cumulative":
                    part = so_far[name] = so_far.get(name, 0) + part / len(tensor)
                totals[name] = totals[name] + part if name in totals else part
            samples += len(tensor)
    if not samples:
        raise MethodError("Importance cannot be measured without data: there was no batch.")
    scale = 1 / samples if reduce == "abs_per_sample" else 1.0
    scores = {name: total * scale for name, total in totals.items()}
    broken = [name for name, score in scores.items() if not torch.isfinite(score).all()]
    if broken:
        raise MethodError(f"The importance of '{broken[0]}' is not finite: the model's loss or activations overflow.")
    return scores


@contextlib.contextmanager
def without_parameter_gradients(model: nn.Module) -> Iterator[None]:
    """Enable gradients, disable autocast, and exclude all parameters from autograd; restore them afterwards."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = next(model.parameters()).device.type
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        try:
            for parameter in parameters:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)
