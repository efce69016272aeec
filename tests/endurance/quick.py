"""Methods with options that make them fast on tiny models."""

from __future__ import annotations

from typing import Any

from everlearn.methods import build
from everlearn.methods.base import REGISTRY

QUICK = {"samples": 4, "capacity": 8, "n_tokens": 4, "probe": 4, "checks": 2, "pseudo_tokens": 12, "r": 2}
OWN: dict[str, dict[str, Any]] = {
    "forever": {"sample": 0.5, "warm_up": 1},
    "kd_seed": {"queue": 6},
    "lfpt5": {"n_tokens": 4, "samples": 3},
}
ARCHITECTURES = {"masked": "roberta", "causal": "gpt2", "text-to-text": "t5"}


def quick(name: str) -> dict[str, Any]:
    """A method as in a recipe."""
    known = REGISTRY[name].Config.model_fields
    return {"name": name} | {key: value for key, value in QUICK.items() if key in known} | OWN.get(name, {})


def place_of(name: str) -> tuple[str, str]:
    """An objective that a method learns under, and an architecture for it."""
    if name == "siatl":  # prompts and answers with a decoder only
        return "text-to-text", "gpt2"
    needs = build(name).needs
    objective = next(each for each in ARCHITECTURES if each in needs.objectives)
    return objective, ARCHITECTURES[objective]
