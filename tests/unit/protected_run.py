"""A protected Trainer on a CPU, in as many processes as started this: ``protected_run.py FOLDER ROWS``."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from test_protect import OPTIONS, SPECS, collator, rows
from transformers import Trainer, TrainingArguments

import tiny
from everlearn.protecting import protect


def run(folder: Path, batch: int) -> None:
    """Learn a second domain, with `batch` rows a process, and write the weights."""
    model = tiny.model("gpt2")
    options = OPTIONS | {"per_device_train_batch_size": batch, "gradient_accumulation_steps": 1}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(folder / "out"), **options),
        train_dataset=rows(),
        data_collator=collator("gpt2"),
    )
    protect(trainer, SPECS, memory=folder / "memory", domain="d2").train()
    if trainer.is_world_process_zero():
        torch.save(model.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
