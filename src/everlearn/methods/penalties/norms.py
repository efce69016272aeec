"""Norms of the change of weights, weighted by their importance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ROOT_EPSILON = 1e-8
"""Added inside the root of REWC, whose derivative would otherwise be infinite at the anchor."""


class Quadratic(torch.autograd.Function):
    """Σ Ω Δ² with the gradient 2 Ω Δ, Δ = θ − θ*, without a copy of the parameters for the backward pass."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, importance: Tensor, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(parameter, importance, anchor)
        return (parameter - anchor).square_().mul_(importance).sum(dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        parameter, importance, anchor = ctx.saved_tensors
        return (parameter - anchor).mul_(importance).mul_(2 * gradients[0]), None, None


class Absolute(torch.autograd.Function):
    """Σ Ω |Δ| with the gradient Ω sign(Δ), which is 0 at θ*."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, importance: Tensor, anchor: Tensor) -> Tensor:
        ctx.save_for_backward(parameter, importance, anchor)
        return (parameter - anchor).abs_().mul_(importance).sum(dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        parameter, importance, anchor = ctx.saved_tensors
        return (parameter - anchor).sign_().mul_(importance).mul_(gradients[0]), None, None


@dataclass(frozen=True)
class Norm:
    """One of the norms.

    Attributes:
        terms: function from (parameter, importance, anchor) to the sum over the parameter, a float32 scalar.
        of: function from the sum over all parameters to the penalty at λ = 1.
        pulled: function from (Δ, λ η Ω) to the Δ' that minimises η λ · penalty + ½ (Δ' − Δ)², element-wise; None if the
            penalty is not a sum over elements.
        adds_up: whether several penalties with different anchors equal one with another anchor, up to a constant.
    """

    terms: type[torch.autograd.Function]
    of: Callable[[Tensor], Tensor]
    pulled: Callable[[Tensor, Tensor], Tensor] | None
    adds_up: bool


NORMS = {
    "quadratic": Norm(Quadratic, lambda total: total / 2, lambda moved, pull: moved / (1 + pull), True),
    "root": Norm(Quadratic, lambda total: (total + ROOT_EPSILON).sqrt(), None, False),
    "absolute": Norm(
        Absolute, lambda total: total, lambda moved, pull: moved.sign() * (moved.abs() - pull).relu(), False
    ),
}
"""½ Σ Ω Δ²; √(Σ Ω Δ² + 1e-8) (REWC); Σ Ω |Δ| (AEWC)."""
