"""A piece of state that holds rows of text in a reservoir."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter
from torch import Tensor

from everlearn.data.reservoir import Reservoir
from everlearn.methods.state.memory import Memory, MemoryReader
from everlearn.methods.state.piece import StatePiece

R = TypeVar("R", bound=Reservoir | None)


@dataclass(frozen=True)
class ReservoirFacts:
    """The facts of :meth:`Reservoir.to_memory`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    capacity: Annotated[int, Field(ge=1)]
    seed: int
    seen: Annotated[int, Field(ge=0)]
    domains: list[str]


class TextRows(StatePiece[R]):
    """A :class:`Reservoir`, saved as tensors "<key><column>" and one fact, whose key is the prefix without its slash.

    With the key "" the facts of the reservoir are all facts of the memory.
    """

    has_prefix = True

    def holds(self, value: R) -> bool:
        return value is not None and len(value) > 0

    def save(self, value: R, memory: Memory) -> None:
        assert value is not None
        columns, facts = value.to_memory()
        memory.tensors |= {f"{self.key}{name}": column for name, column in columns.items()}
        memory.facts |= {self.key.rstrip("/"): facts} if self.key else facts

    def load(self, reader: MemoryReader) -> R:
        columns, key = reader.take_prefixed(self.key, "int"), self.key.rstrip("/")
        if not columns and (key not in reader.facts if key else not reader.facts):
            return self.empty()
        if not key:
            reader.facts = {key: reader.facts}
        facts = reader.take_fact(key, TypeAdapter(ReservoirFacts))
        _refuse_wrong_columns(columns, self.key, reader)
        return Reservoir.from_memory(columns, vars(facts))  # type: ignore[return-value]


def _refuse_wrong_columns(columns: Mapping[str, Tensor], prefix: str, reader: MemoryReader) -> None:
    """Refuse other columns than [rows, length], or values and offsets for rows of different lengths."""
    if not any(name.removesuffix(".values").endswith("_ids") for name in columns):
        reader.refuse(f"{prefix}input_ids", "is missing")
    for name, column in columns.items():
        base, _, part = name.rpartition(".")
        other = {"values": "offsets", "offsets": "values"}.get(part)
        if column.dim() != (1 if other else 2):
            reader.refuse(f"{prefix}{name}", f"must not have shape {tuple(column.shape)}")
        if other and f"{base}.{other}" not in columns:
            reader.refuse(f"{prefix}{base}.{other}", "is missing")
        if part == "offsets":
            offsets, end = column.tolist(), len(columns[f"{base}.values"])
            if offsets[:1] != [0] or offsets[-1] != end or offsets != sorted(offsets):
                reader.refuse(f"{prefix}{name}", "must give the start of each row and the end of the last one")
