"""The suite `lstm-cnn`: what a cell learns, what waits, and what a stopped cell goes on with."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForCausalLM

import tiny
from everlearn.evaluation import Cell, task_path
from everlearn.grid import Grid, resolve
from everlearn.model.loading import load_tokenizer
from everlearn.tasks.labelled import read_end_task
from everlearn_bench.suites import find_suite, read_overlay
from everlearn_bench.suites.lstm_cnn import learning

TASKS = ("subj", "trec", "sst2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks that depend on one word, and the model whose words all bodies begin with."""
    folder = tmp_path_factory.mktemp("data")
    for number, task in enumerate((*TASKS, "agnews")):
        for part, count in (("train", 16), ("test", 8)):
            texts = tiny.texts(count, 10 * number + (part == "test"))
            rows = [{"text": f"{text} {'xy'[i % 2]}", "label": "xy"[i % 2]} for i, text in enumerate(texts)]
            place = folder / "tasks" / task / f"{part}.jsonl.gz"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    words = tiny.tokenizer()
    words.save_pretrained(folder / "words")
    shape = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape)).save_pretrained(folder / "words")
    return folder


def grid(data: Path, folder: Path, row: str) -> Grid:
    changes = ["end_tasks.*.epochs=1", "end_tasks.*.batch_size=8"]
    suite = find_suite("lstm-cnn").on(read_overlay(None, changes, model=str(data / "words"), tokens=None), data)
    made = Grid(suite, resolve([row], suite), [0], [1], folder / "results", folder / "runs", keep=True)
    made.check()
    return made


class Killed(BaseException):
    """Nothing catches it, as with a process that ends."""


def test_a_cell_that_was_killed_goes_on_after_its_last_task(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = grid(data, tmp_path / "whole", "lstm")
    assert [state.state for state in whole.run()] == ["done"]
    told, learn = list[str](), learning.fine_tune

    def fine_tune(model: Any, tokenizer: Any, task: Any, *rest: Any, **options: Any) -> Any:
        if task.name == "sst2" and "sst2" not in told:
            told.append(task.name)
            raise Killed
        told.append(task.name)
        return learn(model, tokenizer, task, *rest, **options)

    monkeypatch.setattr(learning, "fine_tune", fine_tune)
    with pytest.raises(Killed):
        grid(data, tmp_path / "killed", "lstm").run()
    again = grid(data, tmp_path / "killed", "lstm")
    assert [state.state for state in again.run()] == ["done"]
    assert told == ["subj", "trec", "sst2", "sst2"], "what was learnt is not learnt again"
    cells = [json.loads(each.path(each.cells[0]).read_text(encoding="utf-8")) for each in (whole, again)]
    assert cells[0] == cells[1]
    monkeypatch.setattr(learning, "fine_tune", lambda *_, **__: pytest.fail("a cell that is there is not made again"))
    grid(data, tmp_path / "killed", "lstm").run()


@pytest.mark.parametrize("row", ["cnn-max", "lstm-frozen"])
def test_a_classifier_waits_while_the_body_below_it_changes(data: Path, tmp_path: Path, row: str) -> None:
    made = grid(data, tmp_path, row)
    made.run()
    run = made.runs / made.cells[0].name / "run"
    recipe = made.recipe(made.cells[0], run)
    models = [
        AutoModelForSequenceClassification.from_pretrained(run / f"stage-{number:02d}-{task}").eval()
        for number, task in enumerate(TASKS, 1)
    ]
    weights = [model.base_model.state_dict() for model in models]
    embeddings = "embed_tokens.weight"
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert torch.equal(weights[0][embeddings], weights[2][embeddings]) == row.endswith("frozen")
    models[0].base_model.load_state_dict(weights[2])  # its own head, on the body as it is at the end
    task: Any = recipe.end_tasks[0]
    expected = learning.answers(models[0], load_tokenizer(recipe.model), task, read_end_task(task)[1])
    cell = Cell.load(task_path(run / "evaluation", 3, "subj"))
    assert cell["predictions"][0].tolist() == expected.tolist()
    assert not task_path(run / "evaluation", 1, "trec").exists(), "a task is not asked before it is learnt"


def test_components_keep_distances() -> None:
    words = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)) @ torch.eye(3, 8)
    found = learning.components(words, 3)
    assert torch.allclose(torch.cdist(found, found), torch.cdist(words, words), atol=1e-4)
