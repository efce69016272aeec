"""The trainers of TRL on a tiny model that lies in a folder, as users have theirs."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

import tiny

OPTIONS: dict[str, Any] = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2, "learning_rate": 1e-3,
    "lr_scheduler_type": "constant", "use_cpu": tiny.USE_CPU, "report_to": "none", "save_strategy": "no", "bf16": False,
    "disable_tqdm": True, "logging_steps": 1, "gradient_checkpointing": False, "seed": 3,
}  # fmt: skip
ROWS = 8


@functools.cache
def folder(root: Path, rewards: bool = False) -> Path:
    """Write a tiny Llama with its tokenizer, and return its folder."""
    place = root / ("reward" if rewards else "language")
    model = tiny.model("llama", max_position_embeddings=64)
    model.save_pretrained(place)
    if rewards:
        torch.manual_seed(0)
        scoring = AutoModelForSequenceClassification.from_pretrained(place, num_labels=1)
        scoring.config.pad_token_id = tiny.tokenizer().pad_token_id
        scoring.save_pretrained(place)
    tiny.tokenizer().save_pretrained(place)
    return place


def load(root: Path, rewards: bool = False) -> Any:
    """Return the model in its folder."""
    of = AutoModelForSequenceClassification if rewards else AutoModelForCausalLM
    return of.from_pretrained(folder(root, rewards), dtype=torch.float32)


def pairs(seed: int = 0, count: int = ROWS) -> list[dict[str, str]]:
    """Prompts with two answers of different lengths."""
    generator = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(generator.choices(tiny.WORDS, k=generator.randint(least, most)))

    return [{"prompt": words(3, 5), "chosen": " " + words(2, 6), "rejected": " " + words(2, 6)} for _ in range(count)]


def answers(seed: int = 0) -> list[dict[str, Any]]:
    """Prompts with one answer each, wanted or not."""
    rows = pairs(seed)
    return [
        {"prompt": row["prompt"], "completion": row["rejected" if at % 2 else "chosen"], "label": at % 2 == 0}
        for at, row in enumerate(rows)
    ]


def prompts(seed: int = 0) -> list[dict[str, str]]:
    """Prompts alone."""
    return [{"prompt": row["prompt"]} for row in pairs(seed)]


def texts(seed: int = 0) -> list[dict[str, str]]:
    """Plain texts."""
    return [{"text": row["prompt"] + row["chosen"]} for row in pairs(seed)]


def vowels(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs between answers."""
    return [sum(letter in "aeiou" for letter in text) / (1 + len(text)) for text in completions]


GRPO = {"num_generations": 2, "max_completion_length": 6, "temperature": 1.0}
MADE: dict[str, tuple[Callable[[int], list[Any]], type[Trainer], type[Any], dict[str, Any]]] = {
    "SFT": (texts, SFTTrainer, SFTConfig, {"activation_checkpointing": False}),
    "DPO": (pairs, DPOTrainer, DPOConfig, {"beta": 0.5}),
    "KTO": (answers, KTOTrainer, KTOConfig, {}),
    "reward": (pairs, RewardTrainer, RewardConfig, {}),
    "GRPO": (prompts, GRPOTrainer, GRPOConfig, GRPO),
}
TRAINERS = tuple(MADE)


def make(kind: str, root: Path, model: Any = None, seed: int = 0, rows: Any = None, **options: Any) -> Trainer:
    """Return a trainer of a kind: "DPO", "KTO", …

    Args:
        kind: a key of :data:`MADE`.
        root: where the model lies and the trainer writes.
        model: the model; loaded by default.
        seed: seed of the data.
        rows: the dataset, in place of made rows.
        options: its arguments.
    """
    data, trainer, config, own = MADE[kind]
    return trainer(
        model=load(root, kind == "reward") if model is None else model,
        args=config(str(root / "out"), **(OPTIONS | own | options)),
        train_dataset=Dataset.from_list(data(seed) if rows is None else rows),
        processing_class=tiny.tokenizer(),
        **({"reward_funcs": vowels} if kind == "GRPO" else {}),
    )
