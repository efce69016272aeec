"""Notes on losses of methods that outweigh the training loss, so that little is learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everlearn.evaluation.estimate import number
from everlearn.methods.base import Method

FAR = 10.0
"""Times the training loss from which on a method's own losses are noted."""


def outweighing_losses(log: Sequence[Mapping[str, Any]], methods: Sequence[Method]) -> list[str]:
    """Return a note for each method whose losses were far larger than the training loss, where they were it most.

    Args:
        log: lines of a training's log; each has means over the steps since the line before.
        methods: the methods of the training.
    """
    notes = []
    for method in methods:
        times, added, line = 0.0, 0.0, dict[str, Any]()
        for each in log:
            loss = number(each.get("loss")) or 0.0
            own = sum(number(value) or 0.0 for key, value in each.items() if key.startswith(f"{method.name}/"))
            if loss > 0 and own / loss > times:
                times, added, line = own / loss, own, dict(each)
        if times > FAR:
            strength = getattr(method.config, "strength", None)
            key = f"`strength` ({strength:g})" if strength else "its weight"
            notes.append(
                f"{method.title} added {added:.3g} to a training loss of {line['loss']:.3g} (step {line['step']:,} of "
                f"'{line['domain']}'), so that little else counted. Lower {key} of `{method.label}` by factors of ten."
            )
    return notes
