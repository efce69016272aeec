"""Fisher information as a quadratic form of the distance from an anchor: Δᵀ F Δ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.importance.gradient_moments import Batch, BatchedSums, PerSampleLoss, parameters_to_measure, rows_of
from everlearn.importance.per_sample import PerSample


class Importance(Protocol):
    """Interface of an importance for penalties."""

    def quadratic(self, delta: Mapping[str, Tensor]) -> Tensor:
        """Return Δᵀ F Δ, a differentiable scalar.

        `delta` holds the difference of each parameter from its anchor, by name.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, for the memory of a method; `of_tensors` of the class restores them."""


@dataclass
class Diagonal:
    """Importance of each parameter by itself: the diagonal of the Fisher information, Σ_i F_i Δ_i².

    Attributes:
        values: F by parameter name, of the parameter's shape.
    """

    values: dict[str, Tensor]

    def quadratic(self, delta: Mapping[str, Tensor]) -> Tensor:
        """Return Σ F Δ² over the parameters that have an importance."""
        return _summed([(value * delta[name].square()).sum() for name, value in self.values.items()])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors as `diagonal/<name>`."""
        return {f"diagonal/{name}": value for name, value in self.values.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Diagonal:
        """Restore an importance from :meth:`tensors`."""
        return cls(_under("diagonal", tensors))


@dataclass
class Kronecker:
    """Importance with a Kronecker product for each linear layer (K-FAC, arXiv 1503.05671): Σ tr(Δᵀ L Δ R) + Σ F Δ².

    The first sum is over the weights of linear layers, the second over all other parameters. The gradient of a linear
    layer's weight is Σ_s δ_s ⊗ x_s over the positions s of a sample, with x_s the layer's input and δ_s the gradient of
    its output. Its second moment is approximated by the Kronecker product of the second moments of δ and of x,

        L = (1/N) Σ_ns δ_ns δ_nsᵀ,   R = (1/P) Σ_ns x_ns x_nsᵀ,

    with N samples and the P positions that a loss reaches. This treats positions as independent (arXiv 2311.00636,
    "expand"). Unlike a diagonal it accounts for correlations between the weights of a layer. It is exact if every
    sample has one position and δ is independent of x.

    Attributes:
        factors: (L, R) of each weight by parameter name, [rows, rows] and [columns, columns].
        rest: Fisher diagonal of the other parameters.
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    rest: Diagonal = field(default_factory=lambda: Diagonal({}))

    def quadratic(self, delta: Mapping[str, Tensor]) -> Tensor:
        """Return Σ tr(Δᵀ L Δ R) + Σ F Δ²."""
        terms = [((left @ delta[name]) * (delta[name] @ right)).sum() for name, (left, right) in self.factors.items()]
        return _summed([*terms, *([self.rest.quadratic(delta)] if self.rest.values else [])])

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors as `left/<name>`, `right/<name>` and `diagonal/<name>`."""
        pairs = {f"{side}/{name}": pair[i] for name, pair in self.factors.items() for i, side in enumerate(_SIDES)}
        return pairs | self.rest.tensors()

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Kronecker:
        """Restore an importance from :meth:`tensors`."""
        left, right = (_under(side, tensors) for side in _SIDES)
        return cls({name: (left[name], right[name]) for name in left}, Diagonal.of_tensors(tensors))


def kronecker_fisher(
    model: nn.Module,
    batches: Iterable[Batch],
    per_sample_loss: PerSampleLoss,
    names: Sequence[str] | None = None,
    largest: int = 4096,
) -> Kronecker:
    """Return the Kronecker-factored empirical Fisher information of the linear layers, and the diagonal of the rest.

    Each batch has two forward and backward passes, one for the factors and one for the diagonal. Other arguments, and
    errors, are those of :func:`gradient_moment`.

    Args:
        largest: a weight with more rows or columns (a vocabulary) gets a diagonal, because its factor would be larger
            than the weight.
    """
    if model.training and any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules()):
        raise MethodError(
            "Kronecker factors cannot be measured while `train.activation_checkpointing` is on. Remove it."
        )
    chosen = parameters_to_measure(model, names)
    flat = {name: value for name, value in chosen.items() if value.dim() == 2 and max(value.shape) <= largest}
    sums = _Moments({})
    batched: BatchedSums | None = None
    samples = 0
    with torch.enable_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
        for batch in batches:
            if batched is None:
                sums.totals = {
                    name: sums.zeros(flat[name]) for name in _only_products(model, batch, per_sample_loss, flat)
                }
                others = {name: value for name, value in chosen.items() if name not in sums.totals}
                zeros = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in others.items()}
                batched = BatchedSums(model, others, per_sample_loss, zeros)
            with PerSample({name: flat[name] for name in sums.totals}, 1, sums) as seen:
                seen.backward(per_sample_loss(model, batch).sum())
            batched.add(batch)
            samples += rows_of(batch)
    if batched is None:
        raise MethodError("Fisher information cannot be measured without data: there was no batch.")
    rest = {name: total.div_(samples).clamp_(min=0) for name, total in batched.totals.items()}
    factors = {
        name: (total.left / samples, total.right / max(1, total.positions)) for name, total in sums.totals.items()
    }
    for name, value in Kronecker(factors, Diagonal(rest)).tensors().items():
        if not torch.isfinite(value).all():
            raise MethodError(
                f"The Fisher information of '{name.partition('/')[2]}' is not finite: the model's loss overflows."
            )
    return Kronecker(factors, Diagonal(rest))


@dataclass
class _Moment:
    left: Tensor
    right: Tensor
    positions: int = 0


@dataclass
class _Moments:
    """A sink of :class:`PerSample` for second moments of the factors of weight gradients; products only."""

    totals: dict[str, _Moment]

    @staticmethod
    def zeros(weight: Tensor) -> _Moment:
        left, right = (torch.zeros(size, size, device=weight.device) for size in weight.shape)
        return _Moment(left, right)

    def products(self, name: str, left: Tensor, right: Tensor) -> None:
        reached = (left != 0).any(-1) & (right != 0).any(-1)
        total = self.totals[name]
        left, right = left[reached].float(), right[reached].float()
        total.left.addmm_(left.T, left)
        total.right.addmm_(right.T, right)
        total.positions += len(left)

    def samples(self, name: str, gradients: Tensor) -> None:
        raise NotImplementedError

    def rows(self, name: str, index: Tensor, gradients: Tensor, products: Tensor | None) -> None:
        raise NotImplementedError


def _only_products(
    model: nn.Module, batch: Batch, loss: PerSampleLoss, weights: Mapping[str, nn.Parameter]
) -> list[str]:
    """Return the weights that the model uses only as weights of linear layers."""
    with PerSample(weights, 1, _Moments({})) as seen:
        loss(model, batch)
    used = {name: {how for each, how in seen.events if each == name} for name in weights}
    return [name for name, hows in used.items() if hows == {"product"} and name not in seen.unknown]


def _summed(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum() if terms else torch.zeros(())


def _under(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{kind}/"): value for name, value in tensors.items() if name.startswith(f"{kind}/")}


_SIDES = ("left", "right")
