"""`protect` in a Trainer under FSDP2: two processes with shards learn what one process learns; the rest is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from run_recipes import allow_fsdp_on_cpu
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

import stages
import tiny
from everlearn import files
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.model.sharding import full_tensor
from everlearn.protecting import protect
from everlearn.protecting.trainer import check_sharded
from methods_of_other_kinds import AGEM
from two_processes import in_two_processes

EWC = {"name": "ewc", "samples": 12, "strength": 0.5}
MIGU = {"name": "migu", "skip_first_domain": False}
# ε of Adam so large that rounding of tiny gradients does not decide the sign of an update.
OPTIONS: dict[str, Any] = {
    "max_steps": 3, "learning_rate": 1e-2, "adam_epsilon": 1e-2, "max_grad_norm": 0.5, "weight_decay": 0.1,
    "lr_scheduler_type": "constant", "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
    "logging_steps": 1,
}  # fmt: skip
SHARDED = {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}


BUDGET = {"name": "budget", "general": None, "earlier": 0.01, "samples": 4, "probe": 4, "checks": 2}
CASES: dict[str, list[Any]] = {
    "masked": [EWC, MIGU],
    "further": ["kd", "mixout", AGEM(), "wise_ft"],  # rows, weights in a pass, gradients, weights at the end
    "bounded": [BUDGET],
    "adapters": ["mofo", {"name": "replay", "share": 0.5}],
    "adapter of each domain": ["o_lora", {"name": "reptile", "every": 1}],
}
"""Name of a training → its methods."""


def trained(folder: Path, name: str, batch: int, **options: Any) -> None:
    """Learn two domains; keep the weights, what the report tells, and the memory."""
    model: Any = tiny.model("gpt2", dropout=0.0)
    more: dict[str, Any] = {}
    lora = LoraConfig(r=4, init_lora_weights=False, target_modules=["c_attn"], fan_in_fan_out=True)
    torch.manual_seed(0)
    if name == "adapters":
        model = get_peft_model(model, lora)
        old = {"old": ["Some text that was known before. " * 10] * 4}
        more = {"held_out": old, "stop": 1e-9, "stop_every": 1, "stop_then": "warn"}
    for domain in (1, 2):
        if name == "adapter of each domain":
            model = get_peft_model(model if domain == 1 else model.merge_and_unload(), lora)
        count = 14 if name == "bounded" else 12  # it holds two out
        rows = [{"input_ids": block["input_ids"].tolist()} for block in stages.blocks(count, domain)]
        trainer = Trainer(
            model=model,
            args=TrainingArguments(str(folder), per_device_train_batch_size=batch, **OPTIONS, **options),
            train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False),
            processing_class=tiny.tokenizer(),
        )
        protect(trainer, copy.deepcopy(CASES[name]), memory=folder / name, domain=f"d{domain}", **more).train()
        model = trainer.protected.stage.model  # complete, as trained
    saved = {key: full_tensor(value) for key, value in trainer.model.state_dict().items()}
    if trainer.is_world_process_zero():
        torch.save([model.state_dict(), saved, trainer.protection_report().to_dict()], folder / f"{name}.pt")


def half(rank: int, folder: Path) -> None:
    """All of them with shards, shared with another process."""
    allow_fsdp_on_cpu()
    for name in CASES:
        trained(folder, name, 2, **SHARDED)


@pytest.mark.distributed
def test_two_processes_with_shards_learn_what_one_learns(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    [place.mkdir() for place in places]
    in_two_processes(half, places[1])
    for name in CASES:
        trained(places[0], name, 4)
        (one, _, told), (two, saved, retold) = (torch.load(place / f"{name}.pt") for place in places)
        if name == "masked":
            file = "masked/stage-02-d2/ewc.safetensors"
            one, two = ({**got, **files.load_tensors(at / file)} for got, at in zip((one, two), places, strict=True))
        assert one.keys() == two.keys()
        for key, value in one.items():
            torch.testing.assert_close(
                two[key], value, rtol=1e-4, atol=1e-5, msg=lambda said, at=f"{name}: {key}": f"{at}: {said}"
            )
        assert all(torch.equal(value, two[key]) for key, value in saved.items())  # the Trainer's own model
        assert len(told["events"]) == len(retold["events"]) == (1 if name == "adapters" else 0)


def sharded(version: int, adapters: bool = False) -> Any:
    """What a Trainer under FSDP says of itself."""
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=version))
    model: Any = tiny.model("gpt2")
    model = get_peft_model(model, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)) if adapters else model
    return SimpleNamespace(model=model, accelerator=SimpleNamespace(state=state))


@pytest.mark.parametrize(
    ("method", "version", "adapters", "stop_then", "says"),
    [
        ("ewc", 1, False, None, r"FSDP 1 hides the weights.*fsdp_version: 2"),
        ("ewc", 2, False, "end", r"`stop_then='end'` goes back.*'warn'"),
        ("mas", 2, True, None, r"method 'mas' reads the weights that adapters change.*Train with DDP"),
    ],
)
def test_refused(method: str, version: int, adapters: bool, stop_then: str | None, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        check_sharded(sharded(version, adapters), [build(method)], stop_then)
    check_sharded(sharded(2), [build("ewc"), build("migu"), build("replay")], "warn")
