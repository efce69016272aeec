"""Gradients by parameter name for methods that change them: sums, products and norms that work under FSDP2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.model.sharding import full_tensor, local, of_shard, shard_like, sum_over_shards


class Gradients(Mapping[str, Tensor]):
    """A vector over all trained parameters, as in ``own - memory * (own.dot(memory) / memory.dot(memory))``.

    A tensor that is read by name is the local part on this process: the full gradient, or its shard under FSDP2.
    Reductions over elements must use :meth:`dot` and :meth:`norm`, which include all shards.

    Args:
        values: local tensors by parameter name.
        parameters: the parameters by the same names.
    """

    def __init__(self, values: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
        self._values, self._parameters = dict(values), parameters

    @classmethod
    def of(cls, parameters: Mapping[str, nn.Parameter], *, copy: bool = False) -> Gradients:
        """Return the gradients of the last backward pass, for the parameters that have one."""
        values = {name: local(p.grad) for name, p in parameters.items() if p.grad is not None}
        return cls({name: value.clone() for name, value in values.items()} if copy else values, parameters)

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __add__(self, other: Gradients) -> Gradients:
        return self._joined(other, 1)

    def __sub__(self, other: Gradients) -> Gradients:
        return self._joined(other, -1)

    def __mul__(self, factor: float | Tensor) -> Gradients:
        return Gradients({name: value * factor for name, value in self.items()}, self._parameters)

    def dot(self, other: Gradients) -> Tensor:
        """Return the inner product over all parameters, a float32 scalar, the same on every process."""
        names = [name for name in self if name in other]
        if not names:
            return torch.zeros(())
        terms = torch.stack([(self[name].float() * other[name].float()).sum() for name in names])
        return sum_over_shards(terms, [self._parameters[name] for name in names]).sum()

    def norm(self) -> Tensor:
        """Return the Euclidean norm over all parameters, a float32 scalar, the same on every process."""
        return self.dot(self).sqrt()

    def like(self, values: Mapping[str, Tensor]) -> Gradients:
        """Return a vector from full tensors, as the memory holds them, sharded like these gradients.

        Raises:
            MethodError: a name or shape does not belong to the model.
        """
        for name, value in values.items():
            if name not in self._parameters or self._parameters[name].shape != value.shape:
                raise MethodError(f"'{name}' with shape {tuple(value.shape)} is no parameter of the model.")
        return Gradients({name: shard_like(v, self._parameters[name]) for name, v in values.items()}, self._parameters)

    def full_tensors(self) -> dict[str, Tensor]:
        """Return full tensors on the CPU, for the memory; every process must call it."""
        shards = {name: of_shard(value, self._parameters[name]) for name, value in self.items()}
        return {name: full_tensor(shard).detach().to("cpu", copy=True) for name, shard in shards.items()}

    def _joined(self, other: Gradients, sign: int) -> Gradients:
        both = {name: torch.add(value, other[name], alpha=sign) for name, value in self.items() if name in other}
        alone = {name: sign * value for name, value in other.items() if name not in self}
        return Gradients({**self, **both, **alone}, self._parameters)
