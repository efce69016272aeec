"""Checkpoints and adapters with a few things wrong, merged by every method: a model that loads, or one sentence."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tiny
from fuzz.harness import command, fuzz
from fuzz.test_memories import change as change_tensors
from fuzz.test_run_folders import change as change_keys

METHODS = ["mean", "wise_ft", "wsm", "task_arithmetic", "ties", "dare", "model_stock", "slerp", "none"]
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
        words = ["merge", *(place / name for name in names), "-o", place / "out", "--method", chance.choice(METHODS)]
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
