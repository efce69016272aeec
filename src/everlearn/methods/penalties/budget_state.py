"""How a forgetting budget's state is saved: what is known of the groups of texts, and the probes of earlier domains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from pydantic import TypeAdapter

from everlearn.data.reservoir import Reservoir
from everlearn.methods.memory import Loading, Memory, StatePiece
from everlearn.methods.penalties.drift import DriftProbe
from everlearn.methods.penalties.prediction import Known
from everlearn.methods.state import Tensors, TextRows

GENERAL, EARLIER = "general", "earlier"
PARTS = ("fisher", "anchor", "directions")


@dataclass(frozen=True)
class KnownFacts:
    """What is noted of a group."""

    texts: list[str]
    constant: float


class KnownTexts(StatePiece[dict[str, Known]]):
    """What is known of each group: tensors "<group>/<part>/<parameter>" and "<group>/offset", a fact "<group>"."""

    def holds(self, value: dict[str, Known]) -> bool:
        """Return whether a text is known."""
        return any(known.texts for known in value.values())

    def save(self, value: dict[str, Known], memory: Memory) -> None:
        """Write the groups of which a text is known."""
        for group, known in value.items():
            if known.texts:
                for part, tensors in zip(PARTS, (known.importance, known.anchor, known.directions), strict=True):
                    memory.tensors |= {f"{group}/{part}/{name}": tensor for name, tensor in tensors.items()}
                memory.tensors[f"{group}/offset"] = known.offset
                memory.facts[group] = {"texts": list(known.texts), "constant": known.constant}

    def load(self, given: Loading) -> dict[str, Known]:
        """Take back every group that is there."""
        found = {}
        for group in (GENERAL, EARLIER):
            if group in given.facts:
                noted = given.fact(group, TypeAdapter(KnownFacts))
                fisher, anchor, directions = (Tensors(f"{group}/{part}/").load(given) for part in PARTS)
                offset = given.check(f"{group}/offset", given.tensors.pop(f"{group}/offset", torch.ones(1, 1)), "float")
                given.same_names(anchor, fisher, f"{group}/anchor/")
                given.same_names(directions, fisher, f"{group}/directions/")
                ranks = {len(rows) if rows.dim() else 0 for rows in directions.values()}
                if len(ranks) != 1 or offset.shape not in ((), (*ranks,)):
                    given.refuse(f"{group}/offset", f"must have a number for each direction ({sorted(ranks)})")
                for name, value in fisher.items():
                    if anchor[name].shape != value.shape or directions[name].shape[1:] != value.shape:
                        given.refuse(f"{group}/fisher/{name}", "has another shape than anchor and directions")
                found[group] = Known(fisher, anchor, directions, offset, noted.constant, noted.texts)
        return found

    def set(self, method: Any, value: dict[str, Known]) -> None:
        """Give the method the groups that it has a budget for."""
        super().set(method, {group: value.get(group, Known()) for group in method.budgets})


class KeptProbes(StatePiece[dict[str, DriftProbe]]):
    """Held-out rows of earlier domains under "probes/", how well each was read as "nats/<domain>", a fact of widths."""

    def save(self, value: dict[str, DriftProbe], memory: Memory) -> None:
        """Write all rows as one reservoir."""
        kept = Reservoir(max(1, sum(len(probe.rows) for probe in value.values())), 0)
        for text, probe in value.items():
            kept.blocks, kept.domains = [*kept.blocks, *probe.rows], [*kept.domains, *[text] * len(probe.rows)]
            memory.tensors[f"nats/{text}"] = probe.nats if probe.nats is not None else torch.zeros(0)
            memory.facts.setdefault("widths", {})[text] = probe.width
        TextRows("probes/", lambda: kept).save(kept, memory)

    def load(self, given: Loading) -> dict[str, DriftProbe]:
        """Take the rows back, each to its domain."""
        if "probes" not in given.facts:
            return {}
        kept = TextRows("probes/", lambda: Reservoir(1, 0)).load(given)
        widths, nats = given.fact("widths", TypeAdapter(dict[str, float])), Tensors("nats/", dims=1).load(given)
        given.same_names(nats, widths, "nats/")
        probes = {}
        for text, each in nats.items():
            rows = [block for block, domain in zip(kept.blocks, kept.domains, strict=True) if domain == text]
            if len(rows) != len(each) or not rows:
                given.refuse(f"nats/{text}", f"must have a number for each of {len(rows)} rows (got {len(each)})")
            probes[text] = DriftProbe(rows, widths[text], each)
        return probes
