"""Fuzz memories of methods, and merges."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import stages
import tiny
from everlearn.errors import EverlearnError
from everlearn.methods import Memory, build
from everlearn.methods.engine.protection import Protection
from fuzz.harness import command, fuzz
from fuzz.test_memories import change as change_tensors
from fuzz.test_run_folders import change as change_keys
from fuzz.test_run_folders import mutated

# -- Mutated memories of methods: they are loaded and the next domain begins, or one sentence says what is wrong -------


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
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


# -- Checkpoints and adapters with a few things wrong, merged in every way: a model that loads, or one sentence --------


WAYS = ["mean", "wise_ft", "wsm", "task_arithmetic", "ties", "dare", "model_stock", "slerp", "none"]
SETTINGS = [
    "weights=[1, 3]",
    "weights=[]",
    "weights=[0, 0]",
    "keep=0.5",
    "keep=nan",
    "keep=-1",
    "scale=1e400",
    "x=1",
    "=",
    "t=0.5",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two checkpoints and an adapter."""
    place = tmp_path_factory.mktemp("merges")
    for seed, name in enumerate(("base", "one", "two")):
        tiny.model("gpt2", seed=seed).save_pretrained(place / name)
        tiny.tokenizer().save_pretrained(place / name)
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    get_peft_model(AutoModelForCausalLM.from_pretrained(place / "base"), config).save_pretrained(place / "adapter")
    return place


def spoil(folder: Path, chance: random.Random) -> None:
    """Change a key of its configuration, a tensor, or the bytes of a file."""
    weights = next(folder.glob("*.safetensors"))
    config = next(iter(sorted(folder.glob("*config.json"))))
    match chance.choice(("config", "tensor", "tensor", "bytes")):
        case "config":
            content = json.loads(config.read_text(encoding="utf-8"))
            change_keys(content, chance)
            config.write_text(json.dumps(content), encoding="utf-8")
        case "tensor":
            tensors = load_file(weights)
            change_tensors(tensors, chance)
            save_file({key: value.contiguous().clone() for key, value in tensors.items()}, weights, {"format": "pt"})
        case "bytes":
            raw = weights.read_bytes()
            weights.write_bytes(raw[: chance.randrange(len(raw))])


def test_merges(folders: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def case(chance: random.Random) -> None:
        place = tmp_path / "case"
        shutil.copytree(folders, place)
        names = chance.choices(["one", "two", "one", "two", "adapter", "nowhere"], k=chance.choice((1, 2, 2, 2, 3)))
        if chance.random() < 0.7 and (wrong := chance.choice([*names, "base"])) != "nowhere":
            spoil(place / wrong, chance)
        words = ["merge", *(place / name for name in names), "-o", place / "out", "--way", chance.choice(WAYS)]
        words += ["--base", place / "base"] if chance.random() < 0.7 else []
        for setting in chance.choices(SETTINGS, k=chance.choice((0, 0, 1))):
            words += ["--set", setting]
        outcome = command(capfd, *words)
        assert outcome.code in (0, 2), outcome
        assert "Traceback" not in outcome.err
        if outcome.code == 0:
            AutoModelForCausalLM.from_pretrained(place / "out")
        else:
            assert outcome.sentence, outcome
            assert not (place / "out").exists()
        shutil.rmtree(place)

    fuzz("merges", 12, case)
