"""Say whether a run fits the memory of its devices, and which keys to change if it does not."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from everlearn.commands.memory_estimate import ROOM, Held, MemoryEstimate, Setup
from everlearn.errors import RecipeError
from everlearn.wording import count, percent, size

TRIED = "FSDP2, activation checkpointing, bf16 and a batch of one row"
"""The changes of a recipe that :func:`judge` tries."""
_UNITS = {"k": 1, "m": 2, "g": 3, "t": 4}
_LARGEST = 1e14
"""Number of bytes above which an amount is taken for a typing error."""


@dataclass(frozen=True)
class FitVerdict:
    """Whether a run fits.

    Attributes:
        fits: whether it does.
        sentence: the verdict in words.
        change: keys of the recipe and their values with which it would fit; empty if it fits, or if none are known.
    """

    fits: bool
    sentence: str
    change: dict[str, object]


def bytes_of(text: str) -> int:
    """Read an amount of memory: 80GB, 79.6GiB, 141 GB.

    Raises:
        RecipeError: it has another form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b", text.strip().lower())
    amount = 0.0 if match is None else float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2]]
    if not 1 <= amount <= _LARGEST:
        raise RecipeError(
            f"`--memory` is '{text}', but must be the memory of one device, like 80GB or 79.6GiB, at most 100TB."
        )
    return int(amount)


def judge(estimate: MemoryEstimate, setups: Sequence[Setup], memory: int, why_not_sharded: str) -> FitVerdict:
    """Compare what a run needs with the memory of a device.

    Args:
        estimate: the memory of the run.
        setups: the setups of its domains.
        memory: bytes of one device.
        why_not_sharded: why FSDP2 cannot be used; "" if it can.
    """
    held = max((estimate.held(setup) for setup in setups), key=lambda each: each.peak)
    first = setups[0]
    where = f"each of {count(first.devices, 'device')}" if first.devices > 1 else "the device"
    how = f" with {first.distribution}" if first.distribution else ""
    moment, parts = _largest(held)
    if held.peak <= ROOM * memory:
        return FitVerdict(True, f"Fits: {where} holds at most about {size(held.peak)} of {size(memory)}{how}.", {})
    name, amount = max(parts.items(), key=lambda part: part[1])
    near = f" (of which {percent(1 - ROOM, 0)} must stay free)" if held.peak <= memory else ""
    verdict = (
        f"Does not fit: {where} would hold about {size(held.peak)} {moment}{how}, and has {size(memory)}{near}. The "
        f"largest part is {name}, {size(amount)}."
    )
    for change, changed in _changes(estimate, setups, why_not_sharded):
        if any(estimate.fixed(setup).peak > ROOM * memory for setup in changed):
            continue
        less = max((estimate.held(setup) for setup in changed), key=lambda each: each.peak)
        if less.peak <= ROOM * memory:
            keys = " and ".join(f"`{key}: {json.dumps(value)}`" for key, value in change.items())
            then = f"then it holds at most about {size(less.peak)}, {_largest(less)[0]}, and fits"
            return FitVerdict(False, f"{verdict} Set {keys}: {then}.", change)
    sharded = f" FSDP2 cannot be used: {why_not_sharded}." if why_not_sharded and first.devices > 1 else ""
    other = "a method that trains adapters" if "gradients" in parts else "a `method` that measures less between domains"
    return FitVerdict(
        False,
        f"{verdict}{sharded} {TRIED} do not make it fit: take larger devices, a smaller `model`, an optimizer with "
        f"less state (`train.optim`), or {other} (`everlearn methods`).",
        {},
    )


def _largest(held: Held) -> tuple[str, dict[str, int]]:
    """Return the moment of the peak in words, and its parts."""
    if sum(held.between.values()) > sum(held.step.values()):
        return "between two domains", held.between
    return "in a step", held.step


def _changes(
    estimate: MemoryEstimate, setups: Sequence[Setup], why_not_sharded: str
) -> Iterator[tuple[dict[str, object], list[Setup]]]:
    """Yield changes of the recipe, fewer keys first, with the setups that they give."""
    single: list[tuple[dict[str, object], dict[str, object]]] = []
    if setups[0].distribution == "DDP" and not why_not_sharded:
        single.append(({"train.fsdp": True}, {"sharded": True}))
    able = bool(getattr(estimate.model, "supports_gradient_checkpointing", False))
    if able and not all(setup.checkpointing for setup in setups):
        single.append(({"train.activation_checkpointing": True}, {"checkpointing": True}))
    if not setups[0].half:
        single.append(({"train.bf16": True}, {"half": True}))
    if any(setup.rows > 1 for setup in setups):
        single.append(({"train.per_device_train_batch_size": 1}, {"rows": 1}))
    for number in range(1, len(single) + 1):
        for chosen in itertools.combinations(single, number):
            keys = {key: value for names, _ in chosen for key, value in names.items()}
            changes = {key: value for _, values in chosen for key, value in values.items()}
            yield keys, [replace(setup, **changes) for setup in setups]  # type: ignore[arg-type]
