"""Notes on losses of methods that outweigh the training loss, so that little is learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from everlearn.evaluation.estimate import number
from everlearn.methods.base import Method

FAR = 10.0
"""Times the training loss from which on a method's own losses are noted."""


def outweighing_losses(log: Sequence[Mapping[str, Any]], methods: Sequence[Method]) -> list[str]:
    """Return a note for each method whose losses were far larger than the training loss, with the option to lower.

    The note rounds how much larger down to a power of ten, so that runs with several seeds mostly share one note.

    Args:
        log: lines of a training's log; each has means over the steps since the line before.
        methods: the methods of the training.
    """
    notes = []
    for method in methods:
        times = max((_times(line, method.name) for line in log), default=0.0)
        if times >= FAR:
            strength = getattr(method.config, "strength", None)
            option = f"`strength` ({strength:g})" if strength else "its weight"
            notes.append(
                f"{method.title} added more than {10 ** int(math.log10(times)):,} times the training loss to it, so "
                f"that little else counted. Lower {option} of `{method.label}` by factors of ten."
            )
    return notes


def _times(line: Mapping[str, Any], name: str) -> float:
    """Return how many times the training loss a method added in a line of the log."""
    loss = number(line.get("loss"))
    added = sum(number(value) or 0.0 for key, value in line.items() if key.startswith(f"{name}/"))
    return added / loss if loss and loss > 0 else 0.0
