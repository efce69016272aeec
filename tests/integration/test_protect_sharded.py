"""`protect` in a Trainer under FSDP2: two processes with shards learn what one process learns; the rest is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from run_recipes import allow_fsdp_on_cpu
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

import stages
import tiny
from everlearn import files
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.protecting import protect
from everlearn.protecting.sharded import check_sharded
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


def trained(folder: Path, batch: int, **options: Any) -> None:
    """Learn two domains; keep the weights and the memory."""
    model = tiny.model("gpt2", dropout=0.0)
    for domain in (1, 2):
        rows = [{"input_ids": block["input_ids"].tolist()} for block in stages.blocks(12, domain)]
        trainer = Trainer(
            model=model,
            args=TrainingArguments(str(folder), per_device_train_batch_size=batch, **OPTIONS, **options),
            train_dataset=rows,
            data_collator=DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False),
        )
        protect(trainer, [EWC, MIGU], memory=folder / "memory", domain=f"d{domain}").train()
        model = trainer.protected.stage.model  # complete, as trained
    if trainer.is_world_process_zero():
        torch.save(model.state_dict(), folder / "weights.pt")


def half(rank: int, folder: Path) -> None:
    """The same with shards, shared with another process."""
    allow_fsdp_on_cpu()
    trained(folder, 2, **SHARDED)


@pytest.mark.distributed
def test_two_processes_with_shards_learn_what_one_learns(tmp_path: Path) -> None:
    ends = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        trained(tmp_path / name, 4) if name == "one" else in_two_processes(half, tmp_path / name)
        weights = torch.load(tmp_path / name / "weights.pt", weights_only=True)
        ends.append(weights | files.load_tensors(tmp_path / name / "memory/stage-02-d2/ewc.safetensors"))
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        torch.testing.assert_close(
            ends[1][name], value, rtol=1e-4, atol=1e-5, msg=lambda said, key=name: f"{key}: {said}"
        )


def sharded(version: int) -> Any:
    """What a Trainer under FSDP says of itself."""
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=version))
    return SimpleNamespace(model=tiny.model("gpt2"), accelerator=SimpleNamespace(state=state))


@pytest.mark.parametrize(
    ("method", "version", "stops", "says"),
    [
        ("ewc", 1, False, r"FSDP 1 hides the weights.*fsdp_version: 2"),
        ("ewc", 2, True, r"`stop` scores texts during the training"),
        ("kd", 2, False, r"'kd' reads further rows.*`everlearn run`"),
        ("mixout", 2, False, r"'mixout' computes with other weights"),
        ("wise_ft", 2, False, r"'wise_ft' ends with other weights"),
    ],
)
def test_refused(method: str, version: int, stops: bool, says: str) -> None:
    with pytest.raises(MethodError, match=says):
        check_sharded(sharded(version), [build(method)], stops)
    check_sharded(sharded(2), [build("ewc"), build("migu"), build("replay")], False)
