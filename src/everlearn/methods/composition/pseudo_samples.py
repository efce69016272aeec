"""The pseudo-samples of SAPT-LoRA as a piece of state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from everlearn.methods.state import Kind, Memory, MemoryReader, StatePiece

IDS, DOCUMENT, TARGET = "input_ids", "document", "attention"
NUMBERS: dict[str, tuple[Kind, int]] = {IDS: ("int", 2), DOCUMENT: ("int", 2), TARGET: ("float", 1)}
"""Kind of numbers and dimensions of each tensor."""


class PseudoSamples(StatePiece[dict[str, Mapping[str, Tensor]]]):
    """Rows of a domain and their mean attention, saved among its other tensors as "<domain>/<name>".

    Args:
        of: name of the piece with those other tensors, which lists the domains.
    """

    def __init__(self, *, of: str) -> None:
        super().__init__("", dict[str, Mapping[str, Tensor]])
        self.of = of

    def save(self, value: dict[str, Mapping[str, Tensor]], memory: Memory) -> None:
        memory.tensors |= {f"{domain}/{name}": tensor for domain, own in value.items() for name, tensor in own.items()}

    def load(self, reader: MemoryReader) -> dict[str, Mapping[str, Tensor]]:
        """Take the tensors of each domain that has a mean attention."""
        targets = [key for key in reader.tensors if key.rpartition("/")[2] == TARGET]
        domains = [key.rpartition("/")[0] for key in targets]
        return {
            domain: {name: reader.take_tensor(f"{domain}/{name}", *NUMBERS[name]) for name in NUMBERS}
            for domain in domains
        }

    def check(self, values: dict[str, Any], reader: MemoryReader) -> None:
        """Sort by the listed domains, and refuse others."""
        value, listed = values[self.name], values[self.of]
        reader.same_names(value, listed.keys() & value.keys())
        values[self.name] = {domain: value[domain] for domain in listed if domain in value}
