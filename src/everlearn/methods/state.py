"""What a method may declare as its state: tensors, tensors of each domain, one tensor, a fact, rows of text.

    class NearBase(Method):
        _anchor = Tensors("anchor/", parameters=True)
        _learnt = Fact("domains", list[str], beside="_anchor")

``_anchor`` is {} at first and saved as "anchor/<name>"; ``_learnt`` is [] at first. A memory with another key, another
type, NaN or infinity, other names or shapes than the trained parameters' or one of the two alone is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from pydantic import ConfigDict, Field, TypeAdapter
from torch import Tensor, nn

from everlearn.data.reservoir import Reservoir
from everlearn.methods.memory import Kind, Loading, Memory, StatePiece

T = TypeVar("T")
R = TypeVar("R", bound=Reservoir | None)
NAMES = TypeAdapter(list[str])


class Tensors(StatePiece[dict[str, Tensor]]):
    """Tensors by name, saved as "<key><name>".

    Args:
        key: what their keys begin with.
        kind: of numbers.
        dims: how many dimensions each has.
        like: another piece, with the same names and shapes; a tensor of this one may be a single number instead.
        parameters: names and shapes are those of the parameters that are trained.
        listed: key of a fact with the names in order.
        domains: another piece, with the domains; a name is "<domain>/<name>", with the same names in each of them.
        more: of :class:`StatePiece`.
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
        domains: str = "",
        **more: str,
    ) -> None:
        super().__init__(key, dict[str, Tensor], **more)
        self.kind, self.dims, self.like, self.parameters = kind, dims, like, parameters
        self.listed, self.domains = listed, domains

    def save(self, value: dict[str, Tensor], memory: Memory) -> None:
        """Write tensors, and their names where they are listed."""
        memory.tensors |= {f"{self.key}{name}": tensor for name, tensor in value.items()}
        if self.listed:
            memory.facts[self.listed] = list(value)

    def load(self, given: Loading) -> dict[str, Tensor]:
        """Take all that begins with the key, in the order of the list."""
        found = given.under(self.key)
        for name, tensor in found.items():
            given.check(f"{self.key}{name}", tensor, self.kind, self.dims)
        names = listed(self.listed, found, given) if self.listed else list(found)
        given.same_names(found, names, self.key)
        return {name: found[name] for name in names}

    def parts(self, value: dict[str, Tensor]) -> list[tuple[str, Any]]:
        """Return each tensor with its key."""
        return [(f"{self.key}{name}", tensor) for name, tensor in value.items()]

    def check(self, values: dict[str, Any], given: Loading) -> None:
        """Refuse other names, shapes or domains than those of other pieces."""
        super().check(values, given)
        value: dict[str, Tensor] = values[self.name]
        if self.like and value:
            self._same(value, values[self.like], given, numbers=True)
        if self.domains:
            by_domain(value, values[self.domains], given)

    def fit(self, value: dict[str, Tensor], model: nn.Module, given: Loading) -> None:
        """Refuse other names or shapes than those of trained parameters."""
        if self.parameters and value:
            self._same(value, {name: p for name, p in model.named_parameters() if p.requires_grad}, given)

    def _same(
        self, value: dict[str, Tensor], other: Mapping[str, Tensor], given: Loading, numbers: bool = False
    ) -> None:
        given.same_names(value, other, self.key)
        for name, tensor in value.items():
            if tensor.shape != other[name].shape and not (numbers and not tensor.dim()):
                shapes = f"must have shape {tuple(other[name].shape)} (got {tuple(tensor.shape)})"
                given.refuse(f"{self.key}{name}", shapes)


class ByDomain(StatePiece[dict[str, Mapping[str, Tensor]]]):
    """Tensors of each domain, saved as "<domain>/<name>".

    Args:
        listed: key of a fact with the domains in order.
        alike: whether each domain has the same names and shapes.
        only: names that are of this piece, where another one has the rest; of each its kind and dimensions.
        of: that other one, which has the list.
        more: of :class:`StatePiece`.
    """

    def __init__(
        self,
        listed: str = "domains",
        *,
        alike: bool = True,
        only: Mapping[str, tuple[Kind, int]] | None = None,
        of: str = "",
        **more: str,
    ) -> None:
        super().__init__("", dict[str, Mapping[str, Tensor]], **more)
        self.listed, self.alike, self.only, self.of = listed, alike, only or {}, of
        self.has_prefix = not only

    def save(self, value: dict[str, Mapping[str, Tensor]], memory: Memory) -> None:
        """Write tensors and domains."""
        memory.tensors |= {f"{domain}/{name}": one for domain, kept in value.items() for name, one in kept.items()}
        if not self.of:
            memory.facts[self.listed] = list(value)

    def load(self, given: Loading) -> dict[str, Mapping[str, Tensor]]:
        """Take them back, in the order of the list."""
        keys = [key for key in given.tensors if not self.only or key.rpartition("/")[2] in self.only]
        found = {key: given.tensors.pop(key) for key in keys}
        for key, value in found.items():
            given.check(key, value, *self.only.get(key.rpartition("/")[2], ("float",)))
        domains = [key.rpartition("/")[0] for key in found] if self.of else listed(self.listed, found, given)
        return by_domain(found, domains, given, names=self.alike, shapes=self.alike and not self.of)

    def check(self, values: dict[str, Any], given: Loading) -> None:
        """Take the order of the other piece, and refuse domains that it has not."""
        if self.of:
            own = values[self.name]
            given.same_names(own, [domain for domain in values[self.of] if domain in own])
            values[self.name] = {domain: own[domain] for domain in values[self.of] if domain in own}


class OneTensor(StatePiece[Tensor]):
    """One tensor; without anything in it where there is none."""

    def __init__(self, key: str, *, kind: Kind = "float", dims: int | None = None, **more: str) -> None:
        super().__init__(key, lambda: torch.empty(0), **more)
        self.kind, self.dims = kind, dims

    def holds(self, value: Tensor) -> bool:
        """Return whether something is in it."""
        return value.numel() > 0

    def save(self, value: Tensor, memory: Memory) -> None:
        """Write it."""
        memory.tensors[self.key] = value

    def load(self, given: Loading) -> Tensor:
        """Take it back."""
        if self.key not in given.tensors:
            return self.empty()
        return given.check(self.key, given.tensors.pop(self.key), self.kind, self.dims)


class Fact(StatePiece[T]):
    """A value that JSON holds.

    Args:
        key: of the fact.
        empty: makes the value of a method that remembers nothing; its type, unless `of` says more.
        of: its type, as pydantic takes it (``int | None``, a dataclass).
        more: of :class:`StatePiece`.
    """

    file = "json"

    def __init__(self, key: str, empty: Callable[[], T], *, of: Any = None, **more: str) -> None:
        super().__init__(key, empty, **more)
        self.of: Any = of or empty

    @functools.cached_property
    def _type(self) -> TypeAdapter[T]:
        return TypeAdapter(self.of)

    def holds(self, value: T) -> bool:
        """Return whether it differs from the empty value."""
        return value != self.empty()

    def save(self, value: T, memory: Memory) -> None:
        """Write it as JSON."""
        memory.facts[self.key] = self._type.dump_python(value, mode="json")

    def load(self, given: Loading) -> T:
        """Take it back."""
        return given.fact(self.key, self._type) if self.key in given.facts else self.empty()


@dataclass(frozen=True)
class Sampled:
    """What :meth:`Reservoir.to_memory` says of its rows."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    capacity: Annotated[int, Field(ge=1)]
    seed: int
    seen: Annotated[int, Field(ge=0)]
    domains: list[str]


class TextRows(StatePiece[R]):
    """Rows (:class:`Reservoir`): tensors "<key><column>", and a fact about them, the key without its slash.

    Without a key the facts stand for themselves.
    """

    has_prefix = True

    def holds(self, value: R) -> bool:
        """Return whether there is a row."""
        return value is not None and len(value) > 0

    def save(self, value: R, memory: Memory) -> None:
        """Write rows and facts."""
        assert value is not None
        columns, facts = value.to_memory()
        memory.tensors |= {f"{self.key}{name}": column for name, column in columns.items()}
        memory.facts |= {self.key.rstrip("/"): facts} if self.key else facts

    def load(self, given: Loading) -> R:
        """Take them back."""
        columns, key = given.under(self.key), self.key.rstrip("/")
        if not columns and (key not in given.facts if key else not given.facts):
            return self.empty()
        if not key:
            given.facts = {key: given.facts}
        facts = given.fact(key, TypeAdapter(Sampled))
        for name, column in columns.items():
            base, _, part = name.rpartition(".")
            other = {"values": "offsets", "offsets": "values"}.get(part)
            given.check(f"{self.key}{name}", column, "int", 1 if other else 2)
            if other and f"{base}.{other}" not in columns:
                given.refuse(f"{self.key}{base}.{other}", "is missing")
            if part == "offsets" and not _divides(column.tolist(), len(columns[f"{base}.values"])):
                given.refuse(f"{self.key}{name}", "must say where each row of its values begins")
        if not ({"input_ids", "input_ids.values"} & columns.keys()):
            given.refuse(f"{self.key}input_ids", "is missing")
        return Reservoir.from_memory(columns, vars(facts))  # type: ignore[return-value]


def _divides(offsets: list[int], count: int) -> bool:
    return offsets[:1] == [0] and offsets[-1] == count and offsets == sorted(offsets)


class Nested(StatePiece[Any]):
    """The memory of another method that this one uses, under a prefix; its facts under the prefix without a slash."""

    has_prefix = True

    def __init__(self, key: str = "", *, at: str) -> None:
        super().__init__(key, lambda: None, at=at)

    def holds(self, value: Any) -> bool:
        """Return whether the other method remembers something."""
        return isinstance(value, Memory) and bool(value)

    def value(self, method: object) -> Memory:
        """Return what the other method remembers."""
        memory: Memory = super().value(method).memory()
        return memory

    def set(self, method: object, value: Memory) -> None:
        """Give it to the other method, which checks it."""
        super().value(method).load_memory(value)

    def save(self, value: Memory, memory: Memory) -> None:
        """Write it under the prefix."""
        memory.tensors |= {f"{self.key}{name}": tensor for name, tensor in value.tensors.items()}
        memory.facts |= {self.key.rstrip("/"): value.facts} if self.key else value.facts

    def load(self, given: Loading) -> Memory:
        """Take it."""
        tensors, key = given.under(self.key), self.key.rstrip("/")
        if not key:
            facts, given.facts = given.facts, {}
        else:
            facts = given.fact(key, TypeAdapter(dict[str, Any])) if key in given.facts else {}
        return Memory(tensors, facts, given.path)


def listed(key: str, found: Mapping[str, Tensor], given: Loading) -> list[str]:
    """Take a list of names, each of which is there once; there is none where no tensors are."""
    if not found and key not in given.facts:
        return []
    names = given.fact(key, NAMES)
    if len(names) != len(set(names)):
        given.refuse(key, "must name each once", "json")
    return names


def by_domain(
    tensors: Mapping[str, Tensor], domains: Iterable[str], given: Loading, *, names: bool = True, shapes: bool = True
) -> dict[str, Mapping[str, Tensor]]:
    """Return tensors "<domain>/<name>" by domain and name, alike in each domain unless told otherwise."""
    found: dict[str, dict[str, Tensor]] = {domain: {} for domain in domains}
    for key, value in tensors.items():
        domain, _, name = key.rpartition("/")
        if domain not in found:
            given.refuse(key, f"is of no listed domain ({', '.join(found) or 'none is'})")
        found[domain][name] = value
    every = {name: value for one in found.values() for name, value in one.items()}
    for domain, one in found.items():
        given.same_names(one, (every if names else one) or {"…"}, f"{domain}/")
        for name, value in one.items() if shapes else ():
            if value.shape != every[name].shape:
                expected = f"{tuple(every[name].shape)}, as in the last domain (got {tuple(value.shape)})"
                given.refuse(f"{domain}/{name}", f"must have shape {expected}")
    return dict(found)
