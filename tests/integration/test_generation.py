"""A stream of tasks in the text-to-text form: learnt as domains, measured by exact match of what the model writes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import ModelError
from everlearn.evaluation import Cell, task_path
from everlearn.learner import ContinualLearner
from everlearn.methods import REGISTRY, register
from stage_by_text import StageByText
from stage_ensemble import StageEnsemble

NAMES = ["the", "model", "learns", "domain", "and", "keeps", "what", "knew", "before", "while", "tensors", "flow"]


@pytest.fixture(autouse=True)
def methods() -> Iterator[None]:
    for method in (StageEnsemble, StageByText):
        register(method)
    yield
    for method in (StageEnsemble, StageByText):
        del REGISTRY[method.name]


def written(folder: Path, name: str, count: int, seed: int, place: int) -> str:
    """Three words; the answer is one of them, the first or the last."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(seed)
    words = [generator.sample(NAMES, 3) for _ in range(count)]
    rows = [{"text": f" {' '.join(w)}:", "target": f" {w[place]}"} for w in words]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def stream(
    folder: Path, architecture: str = "llama", method: Any = "sequential", steps: int = 150, **groups: Any
) -> Recipe:
    """The first word, then the last word: the second task contradicts the first."""
    data, model = folder / "data", folder / "models" / architecture
    if not model.is_dir():
        tiny.model(architecture).save_pretrained(model)
        tiny.tokenizer().save_pretrained(model)
    domains, tasks = [], []
    for seed, (name, place) in enumerate((("first", 0), ("last", 2))):
        path = written(data, name, 400, seed, place)
        domains.append({"name": name, "path": path, "target_column": "target", "validation": 0.1})
        test = written(data, f"{name}-test", 24, 10 + seed, place)
        task = {"kind": "text-to-text", "test": test, "max_new_tokens": 4, "labels": NAMES}
        tasks.append({"name": f"{name}_word", "domain": name, **task})
    options = tasks[0] | {"name": "options", "kind": "choice", "prompt": "{text}", "choices": [f" {n}" for n in NAMES]}
    options = {key: value for key, value in options.items() if key not in ("labels", "max_new_tokens")}
    tasks.append(options | {"answer_column": "target"})
    return parse(
        {
            "model": str(model),
            "domains": domains,
            "method": method,
            "objective": "text-to-text",
            "end_tasks": tasks,
            "data": {"block_size": 32, "cache": str(folder / "cache")},
            "train": {
                "max_steps": steps,
                "per_device_train_batch_size": 8,
                "learning_rate": 5e-3,
                "save_strategy": "no",
            },
            "evaluation": {"blocks": 8, "batch_size": 16, "end_tasks": "every"},
            "run": {"name": "run", "folder": str(folder / "run")},
        }
        | groups
    )


def scores(run: Path, task: str, outcome: str) -> list[float]:
    return [float(Cell.load(task_path(run / "evaluation", row, task), "")[outcome].mean()) for row in range(3)]
