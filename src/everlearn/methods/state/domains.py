"""A piece of state that has tensors for each domain: adapters, side networks, prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from everlearn.methods.state.memory import Memory, MemoryReader
from everlearn.methods.state.piece import StatePiece


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
        """Write tensors and domains."""
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
