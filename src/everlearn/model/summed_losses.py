"""Losses of many labels at a linear head, with gradients that are computed while the logits of each chunk exist.

Checkpointing would compute the logits again in the backward pass, a quarter of the head's arithmetic. But training
needs only the sum of the losses, up to a factor that the backward pass brings. With outputs z = W h + b,

    ∂(c Σ_n ℓ_n)/∂W = c Σ_n (∂ℓ_n/∂z_n) h_nᵀ

so the forward pass adds up this sum chunk by chunk before c is known. The gradient of the features of a label,
Wᵀ ∂ℓ_n/∂z_n, is multiplied by that label's own factor, whatever the others are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ChunkLosses = Callable[[Tensor, slice, bool], Tensor]
"""Function from the outputs of the head for some labels, [n, V], their place among all labels, and whether this is the
forward pass, to the losses [n]."""


def can_sum(head: nn.Module, features: Tensor) -> bool:
    """Return whether :func:`summed_losses` can compute the losses of a head.

    Float16 has no room for sums that are scaled later.
    """
    if type(head).forward is not nn.Linear.forward:
        return False
    inputs = [features, head.weight, *([] if head.bias is None else [head.bias])]
    device = features.device.type
    half = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    plain = all(type(value) in (Tensor, nn.Parameter) and value.dtype != torch.float16 for value in inputs)
    return plain and not half and any(value.requires_grad for value in inputs)


def summed_losses(losses: ChunkLosses, head: nn.Module, features: Tensor, scored: Tensor, rows: int) -> Tensor:
    """Return the loss of each label, [N], to be summed before it is differentiated.

    Any other use is correct too: the logits are computed again if the backward pass brings different factors for the
    labels and the head is trained, and in a second backward pass through the same graph.

    Args:
        losses: returns the losses of a chunk from the outputs of the head; nothing else in it is differentiated.
        head: a head for which :func:`can_sum` is true.
        features: [N, H].
        scored: whether there is a label, [N]; the loss is constant elsewhere.
        rows: largest number of labels in a chunk.
    """
    result: Tensor = _SummedLosses.apply(losses, rows, scored, features, head.weight, head.bias)
    return result


class _SummedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, losses: ChunkLosses, rows: int, scored: Tensor, features: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.losses, ctx.rows, ctx.needed = losses, rows, ctx.needs_input_grad[3:]
        device = features.device.type
        ctx.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        values, *ctx.gradients = _with_gradients(ctx, features, weight, bias)
        ctx.save_for_backward(scored, features, weight, bias)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factors: Tensor) -> tuple[Tensor | None, ...]:
        scored, features, weight, bias = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        factors = factors.masked_fill(~scored, 0)
        common = factors.gather(0, scored.int().argmax(0, keepdim=True))  # the factor of the first label
        # The only wait for an accelerator: it costs less than logits that are computed again.
        if any(ctx.needed[1:]) and not bool(((factors == common) | ~scored).all()):
            gradients = None
        if gradients is None:
            device, dtype, enabled = ctx.autocast
            with torch.autocast(device, dtype, enabled):
                _, *gradients = _with_gradients(ctx, features, weight, bias, factors)
            return (None, None, None, *gradients)
        for gradient, factor in zip(gradients, (factors[:, None], common, common), strict=True):
            if gradient is not None:
                gradient.mul_(factor)
        return (None, None, None, *gradients)


def _with_gradients(
    ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, factors: Tensor | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the losses, and the requested gradients of their sum, weighted by `factors`."""
    _, dtype, autocast = ctx.autocast
    used = weight.to(dtype) if autocast else weight  # once for all chunks
    values = features.new_empty(len(features), dtype=torch.float32)
    of_features, of_weight, of_bias = (
        torch.zeros_like(value) if needed and value is not None else None
        for value, needed in zip((features, weight, bias), ctx.needed, strict=True)
    )
    for start in range(0, len(features), ctx.rows):
        place = slice(start, min(start + ctx.rows, len(features)))
        part = features[place].to(dtype) if autocast else features[place]
        outputs = F.linear(part, used, bias).requires_grad_()
        with torch.enable_grad():
            losses = ctx.losses(outputs, place, factors is None)
        outward = torch.ones_like(losses) if factors is None else factors[place]
        (gradient,) = torch.autograd.grad(losses, outputs, outward)
        values[place] = losses.detach()
        if of_features is not None:
            of_features[place] = gradient @ used
        if of_weight is not None and of_weight.dtype == gradient.dtype:
            of_weight.addmm_(gradient.T, part)
        elif of_weight is not None:
            of_weight.add_(gradient.T @ part)
        if of_bias is not None:
            of_bias.add_(gradient.sum(0))
    return values, of_features, of_weight, of_bias
