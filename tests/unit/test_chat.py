"""Whether a model still chats: templates, ends of turns and leaks, on a tiny model with a template."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from everlearn.config.recipe import Evaluation
from everlearn.errors import DataError, ModelError
from everlearn.evaluation import METRICS
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.task import Conditions
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint, Predictor
from everlearn.tasks.chat import PROMPTS, Chat, ChatTask, template_of

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BRACKETS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %}{{ m['content'] }}</s>{% endif %}{% endfor %}"
)


def tokenizer(template: str | None) -> Any:
    made = copy.deepcopy(tiny.tokenizer())
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = template
    made.model_max_length = 128
    return made


def how(model: Any, words: Any) -> Conditions:
    return Conditions("base", words, make_objective("causal", model, words), batch_size=3)


class Scripted(Predictor):
    """Writes what it is told, up to the end that is asked for."""

    def __init__(self, model: Any, words: Any, answers: list[str]) -> None:
        self.model, self.words, self.answers = model, words, iter(answers)

    def generate(self, inputs: Any, *, max_new_tokens: int, stop: Any) -> list[list[int]]:
        found = []
        for _ in inputs["input_ids"]:
            ids = self.words(next(self.answers), add_special_tokens=False)["input_ids"]
            end = next((place for place, number in enumerate(ids) if number in stop), len(ids))
            found.append(ids[:end][:max_new_tokens])
        return found


def test_the_end_of_a_turn_is_read_from_the_template() -> None:
    words = tokenizer(CHATML)
    template = template_of(words)
    assert words.convert_ids_to_tokens(template.end) == "<|im_end|>"
    assert {"<|im_start|>", "</s>", "<mask>"} <= set(template.marks)
    assert "<|im_end|>" not in template.marks
    assert not any(mark.isalnum() for mark in template.marks)
    words = tokenizer(BRACKETS)
    template = template_of(words)
    assert template.end == words.eos_token_id
    assert {"[INST]", "[/INST]"} <= set(template.marks)


def test_what_has_no_template_or_no_end_is_refused() -> None:
    with pytest.raises(ModelError, match="has none"):
        Chat(ChatTask()).check_tokenizer(tiny.tokenizer())
    with pytest.raises(ModelError, match="does not end a turn with a special token"):
        template_of(tokenizer("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"))
    with pytest.raises(ModelError, match="cannot be used"):
        template_of(tokenizer("{{ nothing.at.all }}"))
    with pytest.raises(ModelError, match="a masked model only fills gaps"):
        Chat(ChatTask()).check_model("encoder")


def test_an_answer_counts_that_ends_its_turn_and_leaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nthree\nfour\n", encoding="utf-8")
    words, model = tokenizer(CHATML), tiny.model("llama", vocab_size=400)
    task = Chat(ChatTask(prompts=str(path), max_new_tokens=8))
    answers = [
        "it<|im_end|>",
        "the model learns a domain and keeps what it knew before while tensors flow",  # ends never
        "it</s><|im_end|>",  # another token ends it
        "it<|im_start|>user\nit and it and it and it",
    ]
    cell = task.measure(Scripted(model, words, answers), how(model, words))
    by_text = dict(zip(cell.texts, zip(cell["ends_turn"], cell["clean"], cell["chats"], strict=True), strict=True))
    assert by_text["it"] == (1, 1, 1)
    assert by_text["it</s>"] == (1, 0, 0)
    assert sorted(by_text.values()) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1)]
    assert METRICS["chats"].score(cell) == 0.25
    assert [metric.name for metric in metrics_of([cell])] == ["chats", "ends_turn", "clean"]


def test_a_model_is_asked_in_the_template() -> None:
    """One that always says the same token ends every turn, or none."""
    words, model = tokenizer(CHATML), tiny.model("llama", vocab_size=400)
    task = Chat(ChatTask(max_new_tokens=4))
    end = template_of(words).end
    for token, share in ((end, 1.0), (words.convert_tokens_to_ids("a"), 0.0)):
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.model.norm.weight.zero_()  # hidden states are 0, so the head's bias decides
        model.lm_head = torch.nn.Linear(32, 400)
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.lm_head.bias.zero_()[token] = 1
        cell = task.measure(Checkpoint(model, how(model, words).objective), how(model, words))
        assert len(cell) == len(PROMPTS)
        assert METRICS["chats"].score(cell) == share


def test_a_recipe_says_true_or_more() -> None:
    assert [task.name for task in Evaluation(chat=True).always()] == ["chat"]
    assert Evaluation(chat=False).always() == ()
    assert Evaluation(chat={"max_new_tokens": 9}).chat.max_new_tokens == 9
    with pytest.raises(DataError, match="there is no such file"):
        Chat(ChatTask(prompts="nowhere.txt")).check()
