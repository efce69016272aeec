"""Pieces of state that are JSON facts, or the memory of another method."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter

from everlearn.methods.state.memory import Memory, MemoryReader
from everlearn.methods.state.piece import StatePiece

T = TypeVar("T")


class Fact(StatePiece[T]):
    """A value that JSON can hold.

    Args:
        key: its key.
        empty: returns the initial value, which is not saved; also its type, unless `of` is given.
        of: its type for pydantic (``int | None``, a dataclass).
        common: arguments of :class:`StatePiece`.
    """

    file = "json"

    def __init__(self, key: str, empty: Callable[[], T], *, of: Any = None, **common: str) -> None:
        super().__init__(key, empty, **common)
        self.of: Any = of or empty

    @functools.cached_property
    def _type(self) -> TypeAdapter[T]:
        return TypeAdapter(self.of)

    def holds(self, value: T) -> bool:
        return value != self.empty()

    def save(self, value: T, memory: Memory) -> None:
        memory.facts[self.key] = self._type.dump_python(value, mode="json")

    def load(self, reader: MemoryReader) -> T:
        return reader.take_fact(self.key, self._type) if self.key in reader.facts else self.empty()


class Nested(StatePiece[Any]):
    """The memory of another method that this one uses, its tensors under a prefix.

    Args:
        key: the prefix; without its slash it is the key of the other method's facts. "" adds none.
        at: attribute of this method that holds the other one.
    """

    has_prefix = True

    def __init__(self, key: str = "", *, at: str) -> None:
        super().__init__(key, lambda: None, at=at)

    def value(self, method: object) -> Memory:
        memory: Memory = super().value(method).memory()
        return memory

    def set(self, method: object, value: Memory) -> None:
        """Give the memory to the other method, which checks it."""
        super().value(method).load_memory(value)

    def save(self, value: Memory, memory: Memory) -> None:
        memory.tensors |= {f"{self.key}{name}": tensor for name, tensor in value.tensors.items()}
        memory.facts |= {self.key.rstrip("/"): value.facts} if self.key else value.facts

    def load(self, reader: MemoryReader) -> Memory:
        key = self.key.rstrip("/")
        if not key:
            facts, reader.facts = reader.facts, {}
        else:
            facts = reader.take_fact(key, TypeAdapter(dict[str, Any])) if key in reader.facts else {}
        return Memory(reader.take_prefixed(self.key), facts, reader.path)
