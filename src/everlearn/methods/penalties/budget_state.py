"""Save and load the state of a forgetting budget: the groups of texts, and the probes of earlier domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import TypeAdapter

from everlearn.data.reservoir import Reservoir
from everlearn.methods.penalties.drift_prediction import Known
from everlearn.methods.penalties.drift_probe import DriftProbe
from everlearn.methods.state import Memory, MemoryReader, StatePiece, TextRows

GENERAL, EARLIER = "general", "earlier"
PARTS = ("fisher", "anchor", "directions")


@dataclass(frozen=True)
class KnownFacts:
    """The JSON part of a group's state: the names of its texts, and the constant of the predicted drift."""

    texts: list[str]
    constant: float


class KnownTexts(StatePiece[dict[str, Known]]):
    """The predicted drift of the texts in each group (general text, earlier domains).

    Saved as tensors "<group>/<part>/<parameter>" and "<group>/offset", and :class:`KnownFacts` under "<group>".
    """

    def holds(self, value: dict[str, Known]) -> bool:
        return any(known.texts for known in value.values())

    def save(self, value: dict[str, Known], memory: Memory) -> None:
        """Write the groups that have texts."""
        for group, known in value.items():
            if known.texts:
                for part, tensors in zip(PARTS, (known.importance, known.anchor, known.directions), strict=True):
                    memory.tensors |= {f"{group}/{part}/{name}": tensor for name, tensor in tensors.items()}
                memory.tensors[f"{group}/offset"] = known.offset
                memory.facts[group] = {"texts": list(known.texts), "constant": known.constant}

    def load(self, reader: MemoryReader) -> dict[str, Known]:
        groups = {}
        for group in (GENERAL, EARLIER):
            if group in reader.facts:
                facts = reader.take_fact(group, TypeAdapter(KnownFacts))
                fisher, anchor, directions = (reader.take_prefixed(f"{group}/{part}/", "float") for part in PARTS)
                known = Known(fisher, anchor, directions, reader.take_tensor(f"{group}/offset", "float"))
                _refuse_differences(known, group, reader)
                known.constant, known.texts = facts.constant, facts.texts
                groups[group] = known
        return groups

    def set(self, method: Any, value: dict[str, Known]) -> None:
        """Set the groups that the method has a budget for."""
        super().set(method, {group: value.get(group, Known()) for group in method.budgets})


class KeptProbes(StatePiece[dict[str, DriftProbe]]):
    """The probes of earlier domains: rows as "probes/…", losses as "nats/<domain>", bytes per label as "widths"."""

    def save(self, value: dict[str, DriftProbe], memory: Memory) -> None:
        """Write all rows as one reservoir."""
        kept = Reservoir(max(1, sum(len(probe.rows) for probe in value.values())), 0)
        for text, probe in value.items():
            kept.blocks, kept.domains = [*kept.blocks, *probe.rows], [*kept.domains, *[text] * len(probe.rows)]
            memory.tensors[f"nats/{text}"] = probe.nats if probe.nats is not None else torch.zeros(0)
            memory.facts.setdefault("widths", {})[text] = probe.width
        TextRows("probes/", lambda: kept).save(kept, memory)

    def load(self, reader: MemoryReader) -> dict[str, DriftProbe]:
        if "probes" not in reader.facts:
            return {}
        kept = TextRows("probes/", lambda: Reservoir(1, 0)).load(reader)
        widths = reader.take_fact("widths", TypeAdapter(dict[str, float]))
        nats = reader.take_prefixed("nats/", "float", 1)
        reader.same_names(nats, widths, "nats/")
        probes = {}
        for domain, numbers in nats.items():
            rows = [block for block, origin in zip(kept.blocks, kept.domains, strict=True) if origin == domain]
            if len(rows) != len(numbers) or not rows:
                reader.refuse(f"nats/{domain}", f"must have a number for each of {len(rows)} rows (got {len(numbers)})")
            probes[domain] = DriftProbe(rows, widths[domain], numbers)
        return probes


def _refuse_differences(known: Known, group: str, reader: MemoryReader) -> None:
    reader.same_names(known.anchor, known.importance, f"{group}/anchor/")
    reader.same_names(known.directions, known.importance, f"{group}/directions/")
    for name, value in known.importance.items():
        if known.anchor[name].shape != value.shape or known.directions[name].shape[1:] != value.shape:
            reader.refuse(f"{group}/fisher/{name}", "must have the shape of its anchor and of each of its directions")
    ranks = {len(rows) if rows.dim() else 0 for rows in known.directions.values()}
    if len(ranks) != 1 or known.offset.shape not in ((), (*ranks,)):
        reader.refuse(f"{group}/offset", f"must have a number for each direction ({sorted(ranks)})")
