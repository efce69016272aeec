"""Hard attention to the task (HAT, arXiv 1801.01423): learnt gates on units, and the protection of used units.

Equations by their numbers in the paper; e is the embedding of a domain, one number per unit:

    a = σ(s · e)                                                        (eq. 1)
    a^{≤t} = max(a^t, a^{≤t−1}), at s = smax                            (eq. 2, text)
    s = 1/smax + (smax − 1/smax) · (b − 1) / (B − 1),  b = 1 … B        (eq. 3)
    q' = q · smax · (cosh(s e) + 1) / (s · (cosh(e) + 1))               (eq. 4: compensated gradient q of e)
    R = Σ a^t (1 − a^{<t}) / Σ (1 − a^{<t})                             (eq. 5: only newly taken units cost)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.methods.engine.attachment import Attachment
from everlearn.model.sharding import local

LIMIT = 6.0
"""Upper limit of |e|, so that the gradient of a gate never vanishes (section 2.4 of the paper)."""
LARGEST_EXPONENT = 50.0
"""Limit of |s · e| in the compensation, as in the authors' code."""


def annealed(step: int, steps: int, smax: float) -> float:
    """Return s for a step (eq. 3): from 1/smax, where every gate is half open, to smax, where nearly all are 0 or 1.

    Args:
        step: number of optimizer steps of this domain already taken.
        steps: number of optimizer steps of this domain.
        smax: the last and largest s.
    """
    last = max(1, steps - 1)
    return 1 / smax + (smax - 1 / smax) * min(step, steps - 1) / last


class _Gate(torch.autograd.Function):
    """a = σ(s · e), with the compensated gradient.

    dL/de · compensation = dL/da · s σ'(s e) · smax/s · (cosh(clip(s e)) + 1) / (cosh(e) + 1). Since σ'(x) is 1 / (2
    (cosh(x) + 1)), that is dL/da · smax · σ'(e), times e^{−(|s e| − 50)} where the clip acts. This form is correct for
    closed gates too, where σ'(s e) alone underflows.
    """

    @staticmethod
    def forward(ctx: Any, embedding: Tensor, scale: float, smax: float) -> Tensor:
        ctx.save_for_backward(embedding)
        ctx.scale, ctx.smax = scale, smax
        return torch.sigmoid(scale * embedding)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (embedding,) = ctx.saved_tensors
        opened = torch.sigmoid(embedding)
        beyond = (ctx.scale * embedding.abs() - LARGEST_EXPONENT).clamp(min=0)
        return gradients[0] * ctx.smax * opened * (1 - opened) * torch.exp(-beyond), None, None


def gate(embedding: Tensor, scale: float, smax: float) -> Tensor:
    """Return a = σ(s · e) with the compensated gradient (eqs. 1 and 4), [units]."""
    opened: Tensor = _Gate.apply(embedding, scale, smax)
    return opened


def settled(embedding: Tensor, smax: float, binary: bool = False) -> Tensor:
    """Return the gates of a learnt domain, [units], without gradient: at s = smax, or 0 or 1 if `binary` (a > ½)."""
    embedding = embedding.detach()
    return (embedding > 0).to(embedding.dtype) if binary else torch.sigmoid(smax * embedding)


def regulariser(gates: Tensor, taken: Tensor | None) -> Tensor:
    """Return R, the share of the free units that this domain takes (eq. 5).

    Args:
        gates: gates of this domain, [units].
        taken: a^{<t}, [units]; None in the first domain.
    """
    if taken is None:
        return gates.mean()
    free = 1 - taken
    # With every unit taken both sums are 0, and nothing new can be taken.
    return (gates * free).sum() / free.sum().clamp(min=torch.finfo(free.dtype).tiny)


class HardAttention(nn.Module):
    """The embedding of the domain that is trained or tested, and its gates, computed once in each forward pass.

    Args:
        units: group of units → number of units.
        smax: the largest s.
    """

    def __init__(self, units: Mapping[str, int], smax: float) -> None:
        super().__init__()
        self.sizes = dict(units)
        self.smax = self.scale = smax
        self.embedding = nn.Parameter(torch.randn(sum(self.sizes.values())))
        self.gates: Tensor | None = None
        """All gates of the last pass, [units], differentiable with respect to the embedding."""
        self.fixed: Tensor | None = None
        """Gates to use instead: those of a learnt domain."""
        self.values: dict[str, Tensor] = {}
        """The gates by group; all gated modules share this dict."""

    def open(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Compute the gates; a forward pre-hook of the complete model.

        Gates are computed outside of the layers, so they exist when gradient checkpointing recomputes a layer; and at
        this moment FSDP2 has gathered the embedding. A pass without gradient inside the step (of another method) reuses
        the gates of the training pass, which are still needed for its backward pass.
        """
        if self.fixed is None and self.gates is not None and not torch.is_grad_enabled():
            return
        self.gates = gate(self.embedding, self.scale, self.smax) if self.fixed is None else self.fixed
        self.values.update(self.split(self.gates))

    def split(self, units: Tensor) -> dict[str, Tensor]:
        """Split one number per unit, [units], by group."""
        return dict(zip(self.sizes, units.split(list(self.sizes.values())), strict=True))

    def close(self) -> None:
        """Drop the gates of the last pass, so that its graph is freed."""
        self.gates = None
        self.values.clear()

    @torch.no_grad()
    def clamp(self) -> None:
        """Clamp |e| to its limit."""
        local(self.embedding).clamp_(-LIMIT, LIMIT)


class GatedAttachment(Attachment):
    """An attachment with units gated by hard attention. Subclasses add modules and register their hooks."""

    def __init__(self, units: Mapping[str, int], smax: float) -> None:
        super().__init__()
        self.attention = HardAttention(units, smax)

    def place(self, model: nn.Module) -> None:
        """Register a hook that computes the gates before any other module runs."""
        model.register_forward_pre_hook(self.attention.open)

    def factors(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return factors of the attachment's own parameters by name, from factors per unit (1 − a^{<t})."""
        return {}
