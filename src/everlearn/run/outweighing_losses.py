"""Notes on losses of methods that outweigh the training loss, so that little is learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everlearn.methods.base import Method

FAR = 10.0
"""Times the training loss from which on a method's own losses are noted."""


def outweighing_losses(log: Sequence[Mapping[str, Any]], methods: Sequence[Method]) -> list[str]:
    """Return a note for each method whose losses were far larger than the training loss, at their largest.

    Args:
        log: lines of ``metrics.jsonl``; each has means over the steps since the line before.
        methods: the methods of the run.
    """
    notes = []
    for method in methods:
        added = [
            (sum(float(value) for key, value in line.items() if key.startswith(f"{method.name}/")), line)
            for line in log
            if line.get("loss")
        ]
        value, line = max(added, key=lambda each: each[0], default=(0.0, {}))
        if added and value > FAR * line["loss"]:
            strength = getattr(method.config, "strength", None)
            key = f"`strength` ({strength:g})" if strength else "its weight"
            notes.append(
                f"{method.title} added {value:.3g} to a training loss of {line['loss']:.3g} (step {line['step']:,} of "
                f"'{line['domain']}'), so that little else counted. Lower {key} of `{method.label}` by factors of ten, "
                "or let `everlearn tune` find it."
            )
    return notes
