"""Cross-entropy per label that writes its gradient into the memory of the logits.

Logits are the largest tensors of a step. PyTorch's cross-entropy holds three tensors of that size (logits, their
log-softmax, its gradient) and zeroes one; on a CPU every large tensor is mapped and touched page by page at every step,
which takes longer than the arithmetic on it. One tensor, processed in cache-sized parts, gives the same numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

VALUES_AT_ONCE = 2**18
"""Logits per part: 1 MiB in float32, about the size of a core's own cache."""


def cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """Return the cross-entropy of each label in nats, [N]; 0 where the label is `ignore_index`.

    On a CPU the backward pass overwrites `logits`: nothing else may need their values, and a second backward pass
    through the same graph raises PyTorch's error for tensors that were changed in place.

    Args:
        logits: [N, V] float32.
        labels: [N] int64.
        ignore_index: the label of rows that are not scored.
    """
    if logits.device.type != "cpu" or type(logits) is not Tensor:
        # An accelerator's own kernels read the logits fewer times, and its allocator keeps what was freed.
        return F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="none")
    losses: Tensor = _InPlace.apply(logits, labels, ignore_index)
    return losses


class _InPlace(torch.autograd.Function):
    """−log softmax(z)_y = log Σ_j e^{z_j} − z_y; its gradient, softmax(z) − e_y times the incoming one, replaces z."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        ignored, at = labels == ignore_index, labels.clamp(min=0)[:, None]
        normaliser = torch.cat([part.logsumexp(1, keepdim=True) for part in logits.split(_rows(logits))])
        ctx.save_for_backward(logits, normaliser, at, ignored)
        return (normaliser - logits.gather(1, at)).squeeze(1).masked_fill_(ignored, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        logits, normaliser, at, ignored = ctx.saved_tensors
        scale = gradient.masked_fill(ignored, 0)[:, None]
        rows = _rows(logits)
        for z, norm, label, factor in zip(*(t.split(rows) for t in (logits, normaliser, at, scale)), strict=True):
            z.sub_(norm).exp_().mul_(factor).scatter_add_(1, label, -factor)
        return logits, None, None


def _rows(logits: Tensor) -> int:
    return max(1, VALUES_AT_ONCE // logits.shape[1])
