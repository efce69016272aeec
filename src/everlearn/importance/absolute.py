"""Mean absolute gradients of single samples, which MAS and AEWC take for importance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError


def absolute_gradients(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    per_sample: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
    names: Sequence[str] | None = None,
    batch_means: bool = False,
) -> dict[str, Tensor]:
    """Mean over samples of |∂f(x_n)/∂θ|, with a backward pass for each sample.

    The absolute value of a batch's mean gradient is far smaller: gradients of either sign cancel in it. And unlike
    squares, absolute values do not come apart into sums over positions, so there is no batched pass for them. Autocast
    is off, ``.grad`` is never touched, and the model stays in the mode that it came in.

    Args:
        model: the model, at the weights to measure.
        batches: dicts of tensors with one row per sample.
        per_sample: f, (model, batch) to one number per row, [B].
        names: parameters to measure; None for all that are trainable.
        batch_means: instead take the mean over batches of |∇ mean f|, one backward pass a batch.

    Returns:
        Parameter name to its mean, float32, of the parameter's shape.

    Raises:
        MethodError: there is no batch, or a gradient is not finite.
    """
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    chosen = trainable if names is None else {name: trainable[name] for name in names}
    totals = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in chosen.items()}
    count = 0
    with torch.enable_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
        for batch in batches:
            rows = len(next(iter(batch.values())))
            parts = [batch] if batch_means else [{n: v[row : row + 1] for n, v in batch.items()} for row in range(rows)]
            for part in parts:
                gradients = torch.autograd.grad(
                    per_sample(model, part).mean(), list(chosen.values()), allow_unused=True
                )
                for total, gradient in zip(totals.values(), gradients, strict=True):
                    if gradient is not None:
                        total.add_(gradient.float().abs())
            count += len(parts)
    if not count:
        raise MethodError("Importance cannot be measured without data: there was no batch.")
    for name, total in totals.items():
        total.div_(count)
        if not torch.isfinite(total).all():
            raise MethodError(f"The importance of '{name}' is not finite: the model's loss or outputs overflow.")
    return totals
