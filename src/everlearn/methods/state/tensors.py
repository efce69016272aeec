"""Pieces of state that hold tensors: several by name, a single one, or those of each domain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.methods.state.memory import Kind, Memory, MemoryReader
from everlearn.methods.state.piece import StatePiece


class Tensors(StatePiece[dict[str, Tensor]]):
    """Tensors by name, saved as "<key><name>".

    Args:
        key: prefix of their keys.
        kind: kind of numbers.
        dims: number of dimensions of each.
        like: name of another piece with the same names and shapes; a tensor here may be a single number instead.
        parameters: whether names and shapes are those of the trained parameters.
        listed: key of a fact that lists the names in order.
        common: arguments of :class:`StatePiece`.
    """

    has_prefix = True

    def __init__(
        self,
        key: str = "",
        *,
        kind: Kind = "float",
        dims: int | None = None,
        like: str = "",
        parameters: bool = False,
        listed: str = "",
        **common: str,
    ) -> None:
        super().__init__(key, dict[str, Tensor], **common)
        self.kind, self.dims, self.like, self.parameters, self.listed = kind, dims, like, parameters, listed

    def save(self, value: dict[str, Tensor], memory: Memory) -> None:
        memory.tensors |= {f"{self.key}{name}": tensor for name, tensor in value.items()}
        if self.listed:
            memory.facts[self.listed] = list(value)

    def load(self, reader: MemoryReader) -> dict[str, Tensor]:
        """Take all tensors with the prefix, in the order of the list."""
        tensors = reader.take_prefixed(self.key, self.kind, self.dims)
        if not self.listed:
            return tensors
        names = reader.take_names(self.listed, tensors)
        reader.same_names(tensors, names, self.key)
        return {name: tensors[name] for name in names}

    def parts(self, value: dict[str, Tensor]) -> list[tuple[str, Any]]:
        return [(f"{self.key}{name}", tensor) for name, tensor in value.items()]

    def check(self, values: dict[str, Any], reader: MemoryReader) -> None:
        super().check(values, reader)
        if self.like and values[self.name]:
            self._same(values[self.name], values[self.like], reader, numbers=True)

    def fit(self, value: dict[str, Tensor], model: nn.Module, reader: MemoryReader) -> None:
        if self.parameters and value:
            self._same(value, {name: p for name, p in model.named_parameters() if p.requires_grad}, reader)

    def _same(
        self, value: dict[str, Tensor], other: Mapping[str, Tensor], reader: MemoryReader, numbers: bool = False
    ) -> None:
        reader.same_names(value, other, self.key)
        for name, tensor in value.items():
            if tensor.shape != other[name].shape and not (numbers and not tensor.dim()):
                rule = f"must have shape {tuple(other[name].shape)} (got {tuple(tensor.shape)})"
                reader.refuse(f"{self.key}{name}", rule)


class OneTensor(StatePiece[Tensor]):
    """A single tensor of floating-point numbers, saved as "<key>"; at first it has no elements.

    Args:
        key: its key.
        dims: number of dimensions.
        common: arguments of :class:`StatePiece`.
    """

    def __init__(self, key: str, *, dims: int, **common: str) -> None:
        super().__init__(key, lambda: torch.empty(0), **common)
        self.dims = dims

    def holds(self, value: Tensor) -> bool:
        return value.numel() > 0

    def save(self, value: Tensor, memory: Memory) -> None:
        memory.tensors[self.key] = value

    def load(self, reader: MemoryReader) -> Tensor:
        return reader.take_tensor(self.key, "float", self.dims) if self.key in reader.tensors else self.empty()


class ByDomain(StatePiece[dict[str, Mapping[str, Tensor]]]):
    """Tensors of each domain, saved as "<domain>/<name>", and a fact that lists the domains in order.

    Args:
        listed: key of that fact.
        alike: whether every domain has the same names and shapes.
        common: arguments of :class:`StatePiece`.
    """

    has_prefix = True

    def __init__(self, listed: str = "domains", *, alike: bool = True, **common: str) -> None:
        super().__init__("", dict[str, Mapping[str, Tensor]], **common)
        self.listed, self.alike = listed, alike

    def save(self, value: dict[str, Mapping[str, Tensor]], memory: Memory) -> None:
        memory.tensors |= {f"{domain}/{name}": tensor for domain, own in value.items() for name, tensor in own.items()}
        memory.facts[self.listed] = list(value)

    def load(self, reader: MemoryReader) -> dict[str, Mapping[str, Tensor]]:
        """Take all tensors that no other piece has taken, in the order of the list."""
        tensors = reader.take_prefixed(self.key, "float")
        domains = reader.take_names(self.listed, tensors)
        value = split_by_domain(tensors, domains, reader)
        if self.alike:
            _refuse_differences(value, reader)
        return value


def split_by_domain(
    tensors: Mapping[str, Tensor], domains: Iterable[str], reader: MemoryReader
) -> dict[str, Mapping[str, Tensor]]:
    """Return tensors "<domain>/<name>" by domain and name; each domain has at least one."""
    value: dict[str, dict[str, Tensor]] = {domain: {} for domain in domains}
    for key, tensor in tensors.items():
        domain, _, name = key.rpartition("/")
        if domain not in value:
            reader.refuse(key, f"belongs to no listed domain ({', '.join(value) or 'none is listed'})")
        value[domain][name] = tensor
    for domain, own in value.items():
        if not own:
            reader.refuse(f"{domain}/*", "is missing")
    return dict(value)


def _refuse_differences(value: Mapping[str, Mapping[str, Tensor]], reader: MemoryReader) -> None:
    every = {name: tensor for own in value.values() for name, tensor in own.items()}
    for domain, own in value.items():
        reader.same_names(own, every, f"{domain}/")
        for name, tensor in own.items():
            if tensor.shape != every[name].shape:
                rule = f"must have shape {tuple(every[name].shape)}, as in other domains (got {tuple(tensor.shape)})"
                reader.refuse(f"{domain}/{name}", rule)
