"""An LSTM and a CNN in whole runs: random weights from the recipe, EWC, an end task, embeddings frozen or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import labelled, recipe
from transformers import AutoModelForCausalLM

import tiny
from everlearn.commands.export import export
from everlearn.learner import ContinualLearner

pytestmark = pytest.mark.usefixtures("no_report")


@pytest.mark.parametrize(("model_type", "frozen"), [("everlearn-lstm", []), ("everlearn-cnn", ["embeddings"])])
def test_two_domains_and_a_task(model_type: str, frozen: list[str], tmp_path: Path) -> None:
    task = {"name": "word", "train": str(labelled(tmp_path, "train", 24)), "test": str(labelled(tmp_path, "test", 12))}
    task |= {"domain": "first", "epochs": 1, "max_length": 16, "state_of_the_art": 1.0}
    tiny.tokenizer().save_pretrained(tmp_path / "tokenizer")
    sizes = {"vocab_size": tiny.VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "tie_word_embeddings": False}
    base = {"config": {"model_type": model_type, **sizes}, "tokenizer": str(tmp_path / "tokenizer"), "frozen": frozen}
    evaluation = {"end_tasks": "every", "end_task_seeds": 1}
    method = {"name": "ewc", "strength": 100, "samples": 4}
    of = recipe(tmp_path, "gpt2", method=method, model=base, end_tasks=[task], evaluation=evaluation)
    results = ContinualLearner(of).run()
    assert len(results.matrices["standardised"].values) == 3
    loss = results.matrices["loss"].values
    assert loss[2][0] < loss[0][0]  # something was learnt
    stages = [
        AutoModelForCausalLM.from_pretrained(of.folder() / name) for name in ("stage-01-first", "stage-02-second")
    ]
    embeddings, head = (
        [getattr(model, f"get_{which}_embeddings")().weight for model in stages] for which in ("input", "output")
    )
    assert torch.equal(*embeddings) == bool(frozen)
    assert not torch.equal(*head)
    own = type(stages[0]).__module__
    made = export(of.folder() / "stage-02-second", tmp_path / "out").folder
    for card in ((of.folder() / "README.md").read_text(), (made / "README.md").read_text()):
        assert f"```python\nimport {own}  #" in card
        assert "with everlearn installed" in card
        assert "without everlearn installed" not in card
