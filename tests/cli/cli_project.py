"""A small project in a temporary folder, and the real `main()` called in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import tiny
from everlearn.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def labelled(count: int, seed: int) -> list[dict[str, str]]:
    generator = random.Random(seed)
    return [{"text": text, "label": generator.choice(["x", "y"])} for text in tiny.texts(count, seed)]


class Project:
    """A folder with corpora and a recipe that a test may spoil."""

    def __init__(self, folder: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.models, self.capfd = folder, models, capfd
        for seed, name in enumerate(("a", "b", "c", "general")):
            write_jsonl(folder / f"{name}.jsonl", [{"text": text} for text in tiny.texts(150, seed)])
        write_jsonl(folder / "train.jsonl", labelled(32, 7))
        write_jsonl(folder / "test.jsonl", labelled(16, 8))
        self.recipe: dict[str, Any] = {
            "model": str(models / "roberta"),
            "domains": [
                {"name": "a", "path": "a.jsonl", "validation": 0.2},
                {"name": "b", "path": "b.jsonl", "validation": 0.2},
            ],
            "data": {"block_size": 32, "cache": str(folder / "cache")},
            "train": {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1, "save_steps": 2},
            "evaluation": {"blocks": 8, "end_task_seeds": 1},
            "run": {"name": "first"},
        }

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "first"

    def __call__(self, *arguments: str) -> Outcome:
        """Call `everlearn` with these arguments, after writing the recipe to recipe.yaml."""
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(self.recipe), encoding="utf-8")
        self.capfd.readouterr()
        code = main(list(arguments))
        out, err = self.capfd.readouterr()
        return Outcome(code, out, err)

    def fails(self, *arguments: str, says: tuple[str, ...]) -> Outcome:
        """Call it and expect exit code 2 and one sentence that names all of `says`."""
        outcome = self(*arguments)
        assert outcome.code == 2, outcome
        assert "Traceback" not in outcome.err
        sentence = next(line for line in outcome.err.splitlines() if line.startswith("Error: "))
        for part in says:
            assert part in sentence
        return outcome


Spoil = Callable[[Project], Any]
