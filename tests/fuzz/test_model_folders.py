"""Mutated config.json and tokenizer.json: a model is looked at, or one sentence says what is wrong with it."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

import tiny
from everlearn.commands.inspect_model import inspect
from everlearn.commands.model_probe import ModelProbe
from everlearn.errors import EverlearnError
from fuzz.harness import fuzz

VALUES: list[Any] = [None, True, 0, -1, 3, 5, 1.5, "", "x", "3", [], [1], {}, {"a": 1}, float("nan")]
ARCHITECTURES = ("roberta", "gpt2", "llama", "t5")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    for architecture in ARCHITECTURES:
        tiny.model(architecture).save_pretrained(place / architecture)
        tiny.tokenizer().save_pretrained(place / architecture)
    return [place / architecture for architecture in ARCHITECTURES]


def test_mutated_model_folders(folders: list[Path]) -> None:
    def case(generator: random.Random) -> None:
        folder = generator.choice(folders)
        name = generator.choice(["config.json", "config.json", "config.json", "tokenizer.json"])
        before = (folder / name).read_text(encoding="utf-8")
        content = json.loads(before)
        for _ in range(generator.choice([1, 1, 2])):
            change(content if name == "config.json" else content["model"]["vocab"], generator)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
        try:
            for look in (inspect, ModelProbe):
                with contextlib.suppress(EverlearnError):
                    look(str(folder))
        finally:
            (folder / name).write_text(before, encoding="utf-8")

    fuzz("model folders", 40, case)


def change(content: dict[str, Any], generator: random.Random) -> None:
    """Change one value, or remove it."""
    key = generator.choice(sorted(content))
    if generator.random() < 0.2:
        del content[key]
    else:
        content[key] = copy.deepcopy(generator.choice(VALUES))
