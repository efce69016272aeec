"""A protected Trainer, alone or in each of two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

import stages
import tiny
from everlearn.protecting import protect

# ε of Adam so large that rounding of tiny gradients does not decide the sign of an update.
OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 3, "learning_rate": 1e-2,
    "weight_decay": 0.1, "adam_epsilon": 1e-2, "max_grad_norm": 0.5, "lr_scheduler_type": "constant",
    "use_cpu": tiny.USE_CPU, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1,
}  # fmt: skip
SPECS = [{"name": "das", "samples": 8, "general": "none"}, {"name": "ewc", "samples": 12, "strength": 0.5}]


def rows(count: int = 12, seed: int = 1) -> list[dict[str, list[int]]]:
    """A user's tokenised dataset: rows of one length, nothing else."""
    return [{"input_ids": block["input_ids"].tolist()} for block in stages.blocks(count, seed)]


def collator(architecture: str) -> DataCollatorForLanguageModeling:
    return DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=architecture == "roberta", mlm_probability=0.3)


def trainer_of(model: nn.Module, folder: Path, **options: Any) -> Any:
    """A Trainer with a tokenizer, which reads text."""
    return Trainer(
        model=model,
        args=TrainingArguments(str(folder / "out"), **(OPTIONS | options)),
        train_dataset=rows(),
        data_collator=collator("gpt2"),
        processing_class=tiny.tokenizer(),
    )


def protected_run(folder: Path, batch: int) -> None:
    """Learn a second domain, with `batch` rows a process, and write the weights."""
    model = tiny.model("gpt2")
    options = OPTIONS | {"use_cpu": True, "per_device_train_batch_size": batch, "gradient_accumulation_steps": 1}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(folder / "out"), **options),
        train_dataset=rows(),
        data_collator=collator("gpt2"),
    )
    protect(trainer, SPECS, memory=folder / "memory", domain="d2").train()
    if trainer.is_world_process_zero():
        torch.save(model.state_dict(), folder / "weights.pt")


def half_of_a_protected_run(rank: int, folder: Path) -> None:
    """The same, shared with another process."""
    protected_run(folder, 2)
