"""The report of a protected training: what was protected and how, the folder of the memory, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everlearn.comparison.formatting import listing
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import overrides
from everlearn.protecting.held_out import Forgetting
from everlearn.wording import count, percent, size

OTHER_MEANS = {
    "gradients": "changes to gradients",
    "training_data": "other examples in the training data",
    "transforms": "changes to parameters in the forward pass",
    "pull": "weights pulled back after a step",
    "confine": "weights kept within bounds",
    "optimizer": "another optimizer",
    "parameter_groups": "other rates for groups of parameters",
    "schedule": "another schedule of the learning rate",
    "final_weights": "other weights at the end of the domain",
}
"""Hooks besides penalties and masks, and what a method may change in them; the report does not measure how much."""


@dataclass(frozen=True)
class MaskAtWork:
    """Effect of a mask in the last step.

    Attributes:
        parameters: number of parameters that it covers.
        held_back: share of their updates (or gradients) that it removed, on average.
        applies_to: ``update`` or ``gradient``.
    """

    parameters: int
    held_back: float
    applies_to: str


@dataclass(frozen=True)
class ProtectionReport:
    """The report of a protected training; print it, or use :meth:`to_dict`.

    Attributes:
        domain: the domain that was learnt.
        earlier: domains that the memory held before it.
        methods: titles of the methods.
        steps: number of optimizer steps.
        penalties: mean over the training of each loss that a method added, by ``<method>/<loss>``.
        masks: masks by method.
        other_means: other mechanisms of each method, by method, whose effect is not measured here.
        memory: folder that the memory was written to; None on processes that do not write.
        memory_bytes: size of its files.
        forgetting: what was forgotten on each held-out text.
        events: bounds of `stop` that were passed and what followed, and losses of methods that outweighed the training
            loss, one sentence each.
    """

    domain: str
    earlier: tuple[str, ...]
    methods: tuple[str, ...]
    steps: int
    penalties: dict[str, float] = field(default_factory=dict)
    masks: dict[str, MaskAtWork] = field(default_factory=dict)
    other_means: dict[str, list[str]] = field(default_factory=dict)
    memory: Path | None = None
    memory_bytes: int = 0
    forgetting: tuple[Forgetting, ...] = ()
    events: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        return asdict(self) | {"memory": None if self.memory is None else str(self.memory)}

    def numbers(self) -> dict[str, float]:
        """Return what was forgotten, for the log of a Trainer: bits per byte by ``forgotten/<text>``."""
        return {f"forgotten/{each.name}": each.forgotten.value or 0.0 for each in self.forgetting}

    def __str__(self) -> str:
        knew = f"what it knew of {listing(list(self.earlier))}" if self.earlier else "what the model knew before"
        working = {name: value for name, value in self.penalties.items() if value}
        acted, names = bool(working or self.masks or self.other_means), " + ".join(self.methods)
        done = f"{names} protected {knew}" if acted else f"{names} protected nothing in this domain"
        lines = [f"Learnt '{self.domain}' in {self.steps:,} steps; {done}."]
        lines += self.events
        if not acted and not self.earlier:
            lines.append("What it learnt is protected from the next domain on, if the method keeps a memory.")
        lines += [f"Penalty {name}: {value:.3g} on average, added to the loss." for name, value in working.items()]
        lines += [
            f"Mask of {name}: held {percent(mask.held_back)} of {mask.applies_to}s back, on "
            f"{count(mask.parameters, 'parameter')}."
            for name, mask in self.masks.items()
        ]
        if not working and not self.masks:
            lines.append("No penalty and no mask was at work.")
        lines += [f"Not measured here, of {name}: {listing(means)}." for name, means in self.other_means.items()]
        if self.memory is not None:
            lines.append(f"Memory for the next domain: {self.memory} ({size(self.memory_bytes)}).")
        lines += map(str, self.forgetting)
        if self.earlier and any(each.since_base is None for each in self.forgetting):
            lines.append(
                "How much the base model has forgotten in all domains together is unknown of texts that were not in "
                "`held_out` in the first one."
            )
        if not self.forgetting:
            lines.append("What was forgotten was not measured: give `protect` a text (`held_out`).")
        return "\n".join(lines)


def other_means(methods: Sequence[Method], mixed: bool) -> dict[str, list[str]]:
    """Return the mechanisms besides penalties and masks by which methods may act, by method name.

    Args:
        methods: the methods.
        mixed: whether other examples were mixed into the training data.
    """
    hooks = {hook: words for hook, words in OTHER_MEANS.items() if mixed or hook != "training_data"}
    mechanisms = {
        method.label: [words for hook, words in hooks.items() if overrides(method, hook)] for method in methods
    }
    return {name: words for name, words in mechanisms.items() if words}
