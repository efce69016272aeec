"""A small project in a temporary folder, and the real `main()` called in it."""

from __future__ import annotations

import functools
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


@functools.cache
def _files() -> dict[str, bytes]:
    """The files of a project: three domains, general text and a labelled set."""
    rows: dict[str, list[Any]] = {
        name: [{"text": text} for text in tiny.texts(150, seed)] for seed, name in enumerate(("a", "b", "c", "general"))
    }
    rows |= {"train": labelled(32, 7), "test": labelled(16, 8)}
    return {f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in of).encode() for name, of in rows.items()}


class Project:
    """A folder with corpora and a recipe that a test may spoil.

    Attributes:
        folder: where the commands are called from.
        models: tiny models by architecture.
        recipe: what `recipe.yaml` will hold; plain data.
        run_folder: of the recipe's run.
    """

    def __init__(self, folder: Path, models: Path, capfd: pytest.CaptureFixture[str] | None) -> None:
        self.folder, self.models, self.capfd = folder, models, capfd
        for name, content in _files().items():
            (folder / name).write_bytes(content)
        self.recipe: dict[str, Any] = {
            "model": str(models / "roberta"),
            "domains": [
                {"name": "a", "path": "a.jsonl", "validation": 0.2},
                {"name": "b", "path": "b.jsonl", "validation": 0.2},
            ],
            "data": {"block_size": 32, "cache": str(folder / "cache")},
            "train": {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1, "save_strategy": "no"},
            "evaluation": {"blocks": 8, "end_task_seeds": 1},
            "run": {"name": "first"},
        }

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / "first"

    def saves(self) -> None:
        """Let runs save a checkpoint every second step, which takes as long as three steps."""
        self.recipe["train"] |= {"save_strategy": "steps", "save_steps": 2}

    def write(self) -> None:
        """Write the recipe to recipe.yaml."""
        (self.folder / "recipe.yaml").write_text(yaml.safe_dump(self.recipe), encoding="utf-8")

    def __call__(self, *arguments: str) -> Outcome:
        """Call `everlearn` with these arguments, after writing the recipe to recipe.yaml."""
        self.write()
        return self.call(*arguments)

    def call(self, *arguments: str) -> Outcome:
        """Call `everlearn` with these arguments, the files as they are."""
        if self.capfd is None:
            return Outcome(main(list(arguments)), "", "")
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
            assert part in sentence, sentence
        return outcome


Spoil = Callable[[Project], Any]
