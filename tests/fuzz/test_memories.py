"""Mutated memories of methods: they are loaded and the next domain begins, or one sentence says what is wrong."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import EverlearnError
from everlearn.methods import Memory, build
from everlearn.methods.engine.protection import Protection
from fuzz.harness import fuzz
from fuzz.test_run_folders import mutated

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "compositional_modules": ("causal", {"samples": 4}),
    "dap_adapter": ("masked", {}),
    "budget": ("causal", {"samples": 4, "probe": 4, "checks": 2}),
    "das": ("masked", {"samples": 8}),
    "derpp": ("masked", {"per_domain": 5, "capacity": 8}),
    "elle": ("masked", {"prompts": True}),
    "ewc": ("causal", {"samples": 4}),
    "hat": ("masked", {}),
    "inc_lora": ("causal", {}),
    "k_adapter": ("causal", {}),
    "lfpt5": ("causal", {"n_tokens": 4, "samples": 3, "pseudo_tokens": 12}),
    "lifelong_moe": ("causal", {}),
    "lora": ("causal", {}),
    "progressive_prompts": ("masked", {"n_tokens": 4}),
    "replay": ("masked", {}),
    "sapt_lora": ("causal", {"r": 2, "samples": 6, "pseudo_tokens": 8}),
    "stream_schedule": ("causal", {"shape": "infinite", "anneal": 1}),
}


@pytest.fixture(scope="module")
def remembered() -> dict[str, tuple[Memory, Any]]:
    """What each method remembers after two domains, and the model then."""
    found = {}
    for name, (objective, options) in METHODS.items():
        method, model = build({"name": name, **options}), tiny.model(stages.ARCHITECTURE[objective], dropout=0.1)
        for index in (1, 2):
            stage = stages.stage(model, index, objective, general=True)
            stages.learn([method], stage)
            model = stage.model
        found[name] = (method.memory(), model)
    return found


def test_mutated_memories(remembered: dict[str, tuple[Memory, Any]]) -> None:
    def case(generator: random.Random) -> None:
        name = generator.choice(sorted(METHODS))
        (memory, model), (objective, options) = remembered[name], METHODS[name]
        tensors, facts = dict(memory.tensors), copy.deepcopy(memory.facts)
        for _ in range(generator.choice([1, 1, 2])):
            if tensors and (not facts or generator.random() < 0.6):
                change(tensors, generator)
            elif facts:
                mutated(facts, generator)
        method = build({"name": name, **options})
        stage = stages.stage(copy.deepcopy(model), 3, objective, general=True)
        with contextlib.suppress(EverlearnError):
            method.load_memory(Memory(tensors, facts, "memory"))
            protection = Protection([method], stage)
            protection.begin()
            protection.start()

    fuzz("memories", 40, case)


def change(tensors: dict[str, Tensor], generator: random.Random) -> None:
    """Change one tensor, its name, or remove it."""
    key = generator.choice(sorted(tensors))
    value = tensors.pop(key)
    if not value.dim():
        value = value[None]
    kinds = ["remove", "rename", "number", "empty", "transpose", "half", "whole", "not finite", "longer", "large"]
    match generator.choice(kinds):
        case "rename":
            tensors[generator.choice([f"{key}x", key[1:], key.split("/")[-1], f"other/{key}"])] = value
        case "number":
            tensors[key] = value.flatten()[0]
        case "empty":
            tensors[key] = value[:0]
        case "transpose":
            tensors[key] = value.mT.contiguous() if value.dim() > 1 else value[None]
        case "half":
            tensors[key] = value[: len(value) // 2]
        case "whole":
            tensors[key] = value.to(torch.int64)
        case "not finite":
            tensors[key] = torch.full_like(value, float("nan")) if value.is_floating_point() else value
        case "longer":
            tensors[key] = torch.cat([value, value])
        case "large":
            tensors[key] = value + 2**30
