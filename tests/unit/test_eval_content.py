"""Content tokens: which labels they are, and their loss beside that of all."""

from __future__ import annotations

import numpy as np
import pytest

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.data.corpus import Document
from everlearn.evaluation import METRICS, Cell, Conditions
from everlearn.evaluation.metrics import metrics_of
from everlearn.model.objectives import make_objective
from everlearn.predictors.predictor import Checkpoint
from everlearn.tasks.content_tokens import without_content
from everlearn.tasks.held_out import HeldOut, HeldOutText

TEXTS = ["the model learns — the the the graph, graph... \n\n 42\n"] * 30


@pytest.fixture(scope="module")
def blocks() -> PackedBlocks:
    return PackedBlocks.from_blocks(list(tiny.pack(map(Document, TEXTS), 32, kind="decoder")), 0, "a")


def test_frequent_types_formatting_and_special_tokens_are_no_content(blocks):
    tokenizer = tiny.tokenizer()
    types = np.unique(blocks.arrays["input_ids"])
    texts = {int(token): tokenizer.decode([int(token)]) for token in types}
    none = {token for token in texts if without_content(blocks, tokenizer, 0)[token]}
    assert {text.strip() for token, text in texts.items() if token in none} >= {"", ",", ".", "</s>"}
    assert not any(any(map(str.isalnum, texts[token])) for token in none - set(tokenizer.all_special_ids))
    one = {token for token in texts if without_content(blocks, tokenizer, 1)[token]}
    assert {texts[token].strip() for token in one - none} == {"the"}
    assert without_content(blocks, tokenizer, 10_000)[types.tolist()].all()


@pytest.mark.parametrize("architecture", ["gpt2", "roberta"])
def test_the_loss_over_content_by_hand(blocks, tmp_path, architecture):
    model, tokenizer = tiny.model(architecture), tiny.tokenizer()
    objective = make_objective(None, model, tokenizer)
    HeldOut(blocks, 4.0).save(tmp_path / "a.safetensors")
    how = Conditions("base", tokenizer, objective, batch_size=3)
    task = HeldOutText(tmp_path / "a.safetensors", "a", content=1)
    found = task.measure(Checkpoint(model, objective), how)
    batch = objective.collate(blocks.take(range(len(blocks))), range(len(blocks)))
    losses, labels = objective.forward(model, batch).losses.detach().double(), batch["labels"]
    kept = (labels >= 0) & ~without_content(blocks, tokenizer, 1)[labels.clamp(min=0)]
    assert 0 < kept.sum() < (labels >= 0).sum()
    assert METRICS["content_loss"].score(found) == pytest.approx(float(losses[kept].mean()), rel=1e-6)
    plain = HeldOutText(tmp_path / "a.safetensors", "a")
    assert METRICS["loss"].score(found) == pytest.approx(
        METRICS["loss"].score(plain.measure(Checkpoint(model, objective), how)), rel=1e-6
    )
    found.save(tmp_path / "cell.safetensors")
    kept_cell = Cell.load(tmp_path / "cell.safetensors")
    assert [metric.name for metric in metrics_of([kept_cell])] == [
        "bits_per_byte", "loss", "perplexity", "content_loss",
    ]  # fmt: skip
    assert task.fingerprint() != plain.fingerprint()


def test_a_set_without_content_has_no_such_score(blocks, tmp_path):
    model, tokenizer = tiny.model("gpt2"), tiny.tokenizer()
    objective = make_objective(None, model, tokenizer)
    HeldOut(blocks, 4.0).save(tmp_path / "a.safetensors")
    task = HeldOutText(tmp_path / "a.safetensors", "a", content=10_000)
    found = task.measure(Checkpoint(model, objective), Conditions("base", tokenizer, objective, batch_size=3))
    assert np.isnan(METRICS["content_loss"].score(found))
