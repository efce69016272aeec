"""Held-out losses: numbers, the model's state, the same rows for everyone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from everlearn.data.blocks import PackedBlocks
from everlearn.errors import TrainingDiverged
from everlearn.model.modes import evaluating
from everlearn.model.objectives import make_objective
from everlearn.predictors import block_losses


class Blocks:
    """Fixed blocks, taken by number."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return len(self.ids)

    def take(self, indices):
        return [{"input_ids": self.ids[i]} for i in indices]


class NextToken:
    """A causal stand-in; row r has labels at its first 3 + r % 4 positions only. Remembers the rows it was given."""

    def __init__(self):
        self.rows = []

    def collate(self, blocks, rows):
        self.rows.append(list(rows))
        ids = torch.from_numpy(np.stack([block["input_ids"] for block in blocks])).long()
        labels = torch.full_like(ids, -100)
        for i, row in enumerate(rows):
            labels[i, : 3 + row % 4] = ids[i, 1 : 4 + row % 4]
        return {"input_ids": ids, "labels": labels}

    def items(self, batch):
        return (batch["labels"] != -100).sum(1)

    def per_sample_loss(self, model, batch):
        logits = model(batch["input_ids"]).logits.float()
        losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
        return losses.sum(1) / self.items(batch)


@pytest.fixture
def blocks():
    return Blocks(np.random.default_rng(0).integers(5, 300, (10, 12)).astype(np.int32))


def test_sums_are_right(make_model, blocks):
    model, objective = make_model("gpt2"), NextToken()
    found = block_losses(model, blocks, objective, batch_size=4)
    assert objective.rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert found.items.tolist() == [3 + row % 4 for row in range(10)]
    logits = model(torch.from_numpy(blocks.ids).long()).logits.double().log_softmax(-1)
    for row in range(10):
        count = 3 + row % 4
        expected = -sum(logits[row, t, blocks.ids[row, t + 1]].item() for t in range(count))
        assert found.nats[row] == pytest.approx(expected, rel=1e-5)


def test_batch_size_and_number_of_blocks_change_nothing_else(make_model, blocks):
    model = make_model("gpt2")
    seen = []
    all_of_them = block_losses(model, blocks, NextToken(), batch_size=10)
    few = block_losses(model, blocks, NextToken(), batch_size=3, max_blocks=5, progress=seen.append)
    assert seen == [3, 5]
    np.testing.assert_allclose(few.nats, all_of_them.nats[:5], rtol=1e-5)
    assert len(block_losses(model, blocks, NextToken(), batch_size=3, max_blocks=99).nats) == 10


def test_dropout_is_off_and_every_module_keeps_its_mode(make_model, blocks):
    model = make_model("gpt2", dropout=0.5).train()
    model.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    a, b = (block_losses(model, blocks, NextToken(), batch_size=5).nats for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_mode_comes_back_after_an_error(make_model):
    model = make_model("gpt2").train()

    def fail():
        with evaluating(model):
            assert not model.training
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.training


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
def test_with_the_real_objectives(architecture, make_model, tokenizer):
    rng = np.random.default_rng(0)
    rows = rng.integers(5, 300, (6, 16)).astype(np.int32)
    extra = {"labels": rows[:, :5]} if architecture == "t5" else {"segments": np.zeros((6, 16), np.int32)}
    held_out = PackedBlocks({"input_ids": rows, **extra}, seed=0)
    model = make_model(architecture)
    objective = make_objective(None, model, tokenizer)
    found = block_losses(model, held_out, objective, batch_size=4)
    assert found.items.tolist() == [{"roberta": 2, "gpt2": 15, "t5": 5}[architecture]] * 6
    np.testing.assert_allclose(found.nats / found.items, np.log(384), rtol=0.3)
    again = block_losses(model, held_out, objective, batch_size=5)
    np.testing.assert_allclose(again.nats, found.nats, rtol=1e-5)


def test_the_model_can_be_trained_afterwards(make_model, blocks):
    model = make_model("llama").train()
    block_losses(model, blocks, NextToken(), batch_size=5)
    model(torch.from_numpy(blocks.ids).long()).logits.sum().backward()


def test_bf16_is_close(make_model, blocks):
    model = make_model("gpt2")
    full, half = (block_losses(model, blocks, NextToken(), batch_size=5, bf16=on).nats for on in (False, True))
    assert not np.array_equal(full, half)
    np.testing.assert_allclose(half, full, rtol=0.02)


def test_broken_weights_are_said(make_model, blocks):
    model = make_model("gpt2")
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="held-out block 0"):
        block_losses(model, blocks, NextToken(), batch_size=5)
