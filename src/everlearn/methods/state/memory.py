"""Define the memory of a method, and the reader that hands its tensors and facts to the pieces of state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from everlearn.errors import MethodError
from everlearn.options import key_of, wrong_value

T = TypeVar("T")
Kind = Literal["float", "int", "any"]
"""Kind of numbers in a tensor."""


@dataclass
class Memory:
    """What a method carries from one stage to the next: named tensors and JSON facts."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    path: str = field(default="", compare=False)
    """Path of its files without their suffix, for error messages."""

    def __bool__(self) -> bool:
        return bool(self.tensors or self.facts)


class MemoryReader:
    """A memory that is being loaded: items are removed when they are read, so that unknown ones remain.

    Args:
        memory: the memory, which is not changed.
        label: name of the method, for error messages.
    """

    def __init__(self, memory: Memory, label: str) -> None:
        self.tensors, self.facts = dict(memory.tensors), dict(memory.facts)
        self.path, self.label = memory.path, label

    def refuse(self, key: str, rule: str, file: str = "safetensors") -> NoReturn:
        """Raise ``MethodError``: `key` of the file violates `rule`."""
        place = f" {self.path}.{file}" if self.path else ""
        raise MethodError(
            f"Method '{self.label}' cannot load its memory{place}: '{key}' {rule}. "
            "Restore it from a copy, or learn the domain again."
        )

    def take_prefixed(self, prefix: str, kind: Kind = "any", dims: int | None = None) -> dict[str, Tensor]:
        """Take and check the tensors whose keys begin with a prefix; return them by the rest of their keys."""
        keys = [key for key in self.tensors if key.startswith(prefix)]
        return {key.removeprefix(prefix): self.take_tensor(key, kind, dims) for key in keys}

    def take_tensor(self, key: str, kind: Kind = "any", dims: int | None = None) -> Tensor:
        """Take one tensor; refuse another kind of numbers, other dimensions, NaN and infinity."""
        if key not in self.tensors:
            self.refuse(key, "is missing")
        tensor = self.tensors.pop(key)
        if tensor.is_complex() or (kind != "any" and (kind == "float") != tensor.is_floating_point()):
            words = {"float": "floating-point", "int": "whole", "any": "real"}[kind]
            self.refuse(key, f"must hold {words} numbers (got {tensor.dtype})")
        if dims is not None and tensor.dim() != dims:
            self.refuse(key, f"must have {dims} dimensions (got shape {tuple(tensor.shape)})")
        # The extremes are compared because `isfinite` would allocate a tensor of the same size.
        if tensor.is_floating_point() and tensor.numel() and not all(end.isfinite() for end in tensor.aminmax()):
            self.refuse(key, "must hold finite numbers (got NaN or infinity)")
        return tensor

    def take_fact(self, key: str, kind: TypeAdapter[T]) -> T:
        """Take a fact, validated strictly: text and booleans are not accepted as numbers."""
        if key not in self.facts:
            self.refuse(key, "is missing", "json")
        try:
            return kind.validate_json(json.dumps(self.facts.pop(key), allow_nan=False), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            self.refuse(".".join(str(part) for part in (key, *key_of(first)) if part != ""), wrong_value(first), "json")
        except ValueError:
            self.refuse(key, "must hold finite numbers (got NaN or infinity)", "json")

    def take_names(self, key: str, tensors: Mapping[str, Tensor]) -> list[str]:
        """Take a fact that lists names without repetition; return no names if there are neither tensors nor a list."""
        if key not in self.facts and not tensors:
            return []
        names = self.take_fact(key, TypeAdapter(list[str]))
        if len(names) != len(set(names)):
            self.refuse(key, "must not repeat a name", "json")
        return names

    def same_names(self, names: Iterable[str], expected: Iterable[str], prefix: str = "") -> None:
        """Refuse names that are missing or unexpected."""
        names, expected = dict.fromkeys(names), dict.fromkeys(expected)
        for name in expected.keys() - names.keys():
            self.refuse(f"{prefix}{name}", "is missing")
        for name in names.keys() - expected.keys():
            self.refuse(f"{prefix}{name}", "is not expected")
