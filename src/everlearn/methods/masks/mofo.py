"""MoFO: update only the entries of each parameter with the largest momentum."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from everlearn.errors import MethodError
from everlearn.methods.base import Cost, Mask, Method, MethodConfig, Stage, register
from everlearn.methods.masks.rows import share_of
from everlearn.model.sharding import full_tensor
from everlearn.ranges import Between, ranges

MOMENTA = ("exp_avg", "momentum_buffer")
"""Names of the first moment in torch's optimizers: the Adam family and Lion; SGD with momentum; RMSprop with momentum,
whose moment is that of gradients divided by their root mean squares."""


@register
class MoFO(Method):
    """Momentum-filtered optimizer (arXiv 2407.20999, algorithm 1).

    θ_t = θ_{t−1} − η_t FLT_α(m_t) ⊙ m̂_t / (√v̂_t + ε)

    FLT_α is 1 for the floor(α · n) of a parameter's n entries with the largest |m_t|, at least one, and 0 for the
    others, which do not change, weight decay included. Both moments of all entries are updated. A block of the paper is
    a parameter of the model here: a weight matrix, a bias, a matrix of an adapter, as a whole even if it is sharded.

    m_t includes the clipped gradient of the current step, so the filter is computed after the step of the optimizer.
    Entries that tie with the smallest selected one all move; an entry without momentum (a token that was never read)
    does not.
    """

    name = "mofo"
    title = "MoFO"
    summary = "updates only the weights with the largest momentum"
    paper = "https://arxiv.org/abs/2407.20999"
    kinds = ("trick",)
    identity: ClassVar[dict[str, Any] | None] = {"fraction": 1}

    class Config(MethodConfig):
        fraction: float = Field(0.15, gt=0, le=1)
        """α, the share of each parameter's entries that is updated in a step; 1 is plain training. The authors
        recommend 0.05 to 0.2."""
        matrices_only: bool = False
        """Update biases and normalisations without a filter, as in the released code; the paper filters every block."""

    search = ranges(fraction=Between(0.02, 0.5, log=True))
    config: Config

    def cost(self, model: nn.Module) -> Cost:
        """Return the additional memory of the method.

        During the optimizer's step a copy of the trained parameters is held, from which masked entries are restored.
        Finding the entries with the largest momentum needs further memory, for one parameter at a time.
        """
        if self.config.fraction == 1:
            return Cost()
        filtered = self._filtered(model).values()
        largest = max((parameter.numel() for parameter in filtered), default=0)
        copy = sum(parameter.numel() * parameter.element_size() for parameter in filtered)
        return Cost(memory_bytes=copy + math.ceil(selecting(self.config.fraction) * largest), whole_bytes=0)

    def mask(self, stage: Stage) -> Mask | None:
        """Return FLT_α of the momentum of the current step."""
        if self.config.fraction == 1:
            return None
        if stage.optimizer is None:
            raise MethodError(f"Method '{self.label}' reads the optimizer's momentum, but there is no optimizer yet.")
        filtered = self._filtered(stage.model).items()
        return Mask({name: partial(self._filter, stage.optimizer, parameter) for name, parameter in filtered})

    def _filtered(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (parameter.dim() > 1 or not self.config.matrices_only)
        }

    def _filter(self, optimizer: Optimizer, parameter: nn.Parameter) -> Tensor:
        momentum = self._momentum(optimizer, parameter)
        if momentum is None:  # no gradient in this step, so the optimizer skipped it
            return torch.ones((), device=parameter.device)
        return largest_entries(full_tensor(momentum), self.config.fraction)

    def _momentum(self, optimizer: Optimizer, parameter: nn.Parameter) -> Tensor | None:
        """Return m_t, with the layout of the parameter.

        Raises:
            MethodError: the optimizer has no readable momentum.
        """
        state = optimizer.state.get(parameter, {})
        for name in MOMENTA:
            if isinstance(momentum := state.get(name), Tensor) and momentum.shape == parameter.shape:
                return momentum
        if parameter.grad is None:
            return None
        group = next(group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
        if group.get("momentum") == 0 and not any(isinstance(value, Tensor) for value in state.values()):
            return parameter.grad  # gradient descent without momentum: m_t = g_t
        raise MethodError(
            f"Method '{self.label}' filters by the optimizer's first moment, and {type(optimizer).__name__} stores "
            "none that can be read. Set `train.optim` to adamw_torch."
        )


def selecting(fraction: float) -> float:
    """Return the bytes per entry that :func:`largest_entries` needs.

    Magnitudes of 4 bytes; beside them the largest ones with 64-bit indices, then the result and its comparison.
    """
    return 4 + max(12 * fraction, 5)


def largest_entries(momentum: Tensor, fraction: float) -> Tensor:
    """Return 1 for the entries that are largest in magnitude, 0 for the others, in the shape of `momentum`, float32.

    Args:
        momentum: the complete momentum of one parameter.
        fraction: share of its entries, in (0, 1]; floor(fraction · n) are selected, at least one.
    """
    sizes = momentum.float().abs().flatten()
    count = max(1, share_of(fraction, sizes.numel()))
    smallest = sizes.topk(count, sorted=False).values.min()  # kthvalue is refused on a GPU by `full_determinism`
    return ((sizes >= smallest) & (sizes > 0)).float().view(momentum.shape)
