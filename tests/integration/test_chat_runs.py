"""A run that learns chats and plain text, one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import Killer, assert_same, elsewhere, kill_and_resume, recipe

import tiny
from everlearn.config.recipe import Recipe
from everlearn.learner import ContinualLearner

pytestmark = pytest.mark.usefixtures("no_report")
TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}: {{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def made(folder: Path, **keys: Any) -> Recipe:
    """Chats, then text."""
    built = recipe(folder, "gpt2", dropout=0.0)
    tokenizer = tiny.tokenizer()
    before, tokenizer.chat_template = tokenizer.chat_template, TEMPLATE
    tokenizer.save_pretrained(Path(built.model.path or ""))
    tokenizer.chat_template = before
    words = iter(tiny.texts(400, seed=5, words=6))
    path = folder / "chats.jsonl"
    chats = [
        [{"role": role, "content": next(words)} for _ in range(1 + number % 3) for role in ("user", "assistant")]
        for number in range(60)
    ]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats), encoding="utf-8")
    first = {"name": "chats", "path": str(path), "messages_column": "messages", "validation": 0.2, **keys}
    return built.changed(domains=[first, built.domains[0].model_dump(mode="json")])


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_learns_chats_and_plain_text(tmp_path: Path, streaming: bool) -> None:
    results = ContinualLearner(made(tmp_path, streaming=streaming)).run()
    scores = results.matrices["bits_per_byte"].estimates()
    assert scores["chats", "chats"].value < scores["base", "chats"].value


def test_a_killed_run_ends_in_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = made(tmp_path, streaming=True, shuffle_buffer=3)
    whole = elsewhere(broken, tmp_path / "whole")
    ContinualLearner(whole).run()
    kill_and_resume(Killer(monkeypatch), broken, ["step 1.3", "checkpoint 1.4", "end"])
    assert_same(broken.folder(), whole.folder())
