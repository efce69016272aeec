"""Importance of units: the mean over samples of |∂L/∂g| at g = 1 (arXiv 2302.03241, eq. 3 and 5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.anatomy import Site
from everlearn.errors import MethodError
from everlearn.importance.gates import Gates

if TYPE_CHECKING:
    from everlearn.objectives import Objective

Batch = Mapping[str, Tensor]
PerSampleLoss = Callable[[nn.Module, Batch], Tensor]
Reduce = Literal["abs_per_sample", "signed_sum"]


def unit_importance(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    sites: Sequence[Site] | None = None,
    reduce: Reduce = "abs_per_sample",
) -> dict[str, Tensor]:
    """Importance of every unit for a loss, exactly per sample, with one backward pass for each batch.

    Each row of a batch has gates of its own, so the gradient of the summed loss with respect to them holds each
    sample's gradient. Parameters are not differentiated, autocast is off, and the model stays in the mode (training
    or evaluation) and with the gradients that it came with.

    Args:
        model: the model, at the weights to measure.
        batches: dicts of tensors with one row per sample.
        per_sample_loss: (model, batch) to one loss per row, [B]; a row's loss must depend on that row alone.
        sites: which units; None for all.
        reduce: `abs_per_sample` is the paper's (1/N) Σ_n |∂L_n/∂g| (eq. 3); `signed_sum` is Σ_n ∂L_n/∂g, which the
            released code takes the absolute value of only after normalising.

    Returns:
        Site name to importance, [units] float32.

    Raises:
        MethodError: there is no batch, or a gradient is not finite.
    """
    return _gradients(model, batches, per_sample_loss, sites, reduce, copies=1)


def general_importance(
    model: nn.Module,
    batches: Iterable[Batch],
    objective: Objective,
    sites: Sequence[Site] | None = None,
    reduce: Reduce = "abs_per_sample",
) -> dict[str, Tensor]:
    """Importance of every unit for general knowledge, without the data that it came from (arXiv 2302.03241, eq. 5).

    A text is run twice in one pass, with independent dropout, and the difference of the two representations
    (:func:`proxy_kl_per_sample`) is differentiated: units that the model's knowledge is robust in matter less. Both
    copies of a sample share its gates, so the absolute value is taken per sample. The text is the one before masking
    (``plain_ids``) where a batch has it. The model is in training mode during the passes only.

    Args:
        model: the model, at the weights to measure.
        batches: as the objective collates them.
        objective: gives the model's inputs and the last hidden state.
        sites: which units; None for all.
        reduce: see :func:`unit_importance`.

    Returns:
        Site name to importance, [units] float32.

    Raises:
        MethodError: the model has no dropout (the proxy would be zero everywhere), there is no batch, or a gradient
            is not finite.
    """
    if not has_dropout(model):
        raise MethodError(
            "General importance compares two passes with different dropout, but this model has no dropout: every rate "
            "is 0, so the measure would be exactly zero. Give the model dropout (for example "
            "`model.config: {attention_dropout: 0.1}`), or do not ask for general importance."
        )

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs = objective.inputs(batch)
        if "plain_ids" in batch:
            inputs["input_ids"] = batch["plain_ids"]
        twice = {name: torch.cat([value, value]) for name, value in inputs.items()}
        first, second = objective.hidden(model, twice).chunk(2)
        # The mask of the sequence whose hidden state this is; document masks [B, 1, S, S] hide no position.
        mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
        return proxy_kl_per_sample(first, second, mask if mask is not None and mask.dim() == 2 else None)

    with _training(model):
        return _gradients(model, batches, loss, sites, reduce, copies=2)


def proxy_kl_per_sample(first: Tensor, second: Tensor, mask: Tensor | None = None) -> Tensor:
    """KL(p₁ ‖ p₂) between two representations, p = softmax over features; summed over features, mean over tokens.

    Args:
        first: hidden state of the first pass, [B, S, H].
        second: hidden state of the second pass, [B, S, H].
        mask: 1 for the tokens that count, [B, S]; None counts all.

    Returns:
        Nats per token for each sample, [B].
    """
    p, q = F.log_softmax(first.float(), dim=-1), F.log_softmax(second.float(), dim=-1)
    tokens = (p.exp() * (p - q)).sum(-1)
    if mask is None:
        return tokens.mean(1)
    return (tokens * mask).sum(1) / mask.sum(1).clamp(min=1)


def _gradients(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    sites: Sequence[Site] | None,
    reduce: Reduce,
    copies: int,
) -> dict[str, Tensor]:
    """The reduced per-sample gradients; a batch of B samples runs as `copies` · B rows, copy after copy."""
    totals: dict[str, Tensor] = {}
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
                part = gradient.abs().sum(0) if reduce == "abs_per_sample" else gradient.sum(0)
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
    """Autograd on, autocast off, and no parameter takes part in it; every parameter is restored afterwards."""
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


@contextlib.contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Training mode for every module; each returns to the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def has_dropout(model: nn.Module) -> bool:
    """Whether any rate is above 0, as a dropout module or as a number that a functional dropout reads."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            return True
        if any("drop" in name and isinstance(value, float) and value > 0 for name, value in vars(module).items()):
            return True
    return False
