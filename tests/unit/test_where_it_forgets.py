"""Blends of two checkpoints and the drift of what they predict, against slow float64 references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.diagnostics.checkpoint_distance import functional_drift
from everlearn.diagnostics.interpolation import GoingBack, Hybrid, _add, _layers, blending
from everlearn.evaluation import text_cell
from everlearn.evaluation.task import Conditions
from everlearn.model.objectives import make_objective
from everlearn.predictors import Checkpoint
from everlearn.tasks.held_out import HeldOut, HeldOutText


def other(architecture: str):
    """The same model with all its weights elsewhere."""
    return tiny.model(architecture, seed=1)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
def test_blends_are_lines_and_end_bit_for_bit_at_the_checkpoints(architecture):
    old, model = tiny.model(architecture), other(architecture)
    before = {name: p.detach().clone() for name, p in old.named_parameters()}
    new = {name: p.detach().clone() for name, p in model.named_parameters()}
    blends = [Hybrid(str(a), lambda _, a=a: a) for a in (0.0, 0.25, 1.0)]
    for blended, share in zip(blending(model, before, blends), (0.0, 0.25, 1.0), strict=True):
        for name, p in blended.named_parameters():
            wanted = before[name].double() + share * (new[name].double() - before[name].double())
            if share in (0.0, 1.0):
                assert torch.equal(p, before[name] if share == 0 else new[name])
            torch.testing.assert_close(p.double(), wanted, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(p, new[name]) for name, p in model.named_parameters()), "its own weights are back"


def test_each_layer_is_put_back_once_and_alone():
    old, model = dict(tiny.model("gpt2").named_parameters()), other("gpt2")
    new = {name: p.detach().clone() for name, p in model.named_parameters()}
    back: list[str] = []
    blends = _layers(model)
    assert [blend.label for blend in blends] == ["embeddings", "layers.0", "layers.1", "other"]
    for blended in blending(model, old, blends):
        own = [name for name, p in blended.named_parameters() if not torch.equal(p, new[name])]
        assert all(torch.equal(blended.get_parameter(name), old[name]) for name in own)
        back += own
    # A bias of zeros is the same in both.
    assert sorted(back) == sorted(name for name in new if not torch.equal(new[name], old[name]))


def test_an_interrupted_look_leaves_the_model_as_it_was():
    old, model = dict(tiny.model("gpt2").named_parameters()), other("gpt2")
    new = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = blending(model, old, [Hybrid("", lambda _: 0.5)] * 2)
    next(steps)
    steps.close()
    assert all(torch.equal(p, new[name]) for name, p in model.named_parameters())


def test_what_returns_is_counted_in_bits_and_as_a_share_of_the_way():
    rng = np.random.default_rng(0)
    items, old = np.full(40, 10), rng.normal(20, 1, 40)
    new, blend = old + 5 + 0.1 * rng.normal(size=40), old + 2
    cells = [text_cell(nats, items, 4.0, task="a", mark="x") for nats in (old, new, blend)]
    found = GoingBack("", "one", "two", ("layer",))
    _add(found, {"a": ("known before", cells), "b": ("known before", cells), "c": ("general", [cells[0]] * 3)})
    (own,) = found.found["a"]
    to_bits = 1 / (10 * math.log(2) * 4.0)
    assert own.back.value == pytest.approx((new - blend).mean() * to_bits)
    assert own.way.value == pytest.approx((new - blend).mean() / (new - old).mean())
    assert own.way.low < own.way.value < own.way.high
    assert own.back.high - own.back.low < 0.5 * (own.score.high - own.score.low), "paired by block"
    assert found.found["known before, mean"][0].back.value == pytest.approx(own.back.value)
    assert found.found["c"][0].way.value is None, "the two checkpoints cannot be told apart"
    assert "general, mean" not in found.found


@pytest.fixture
def probe(tmp_path):
    rng = np.random.default_rng(0)
    blocks = PackedBlocks(
        {
            "input_ids": rng.integers(5, tiny.VOCABULARY, (6, 16), dtype=np.int32),
            "segments": np.zeros((6, 16), np.int32),
        },
        seed=0,
    )
    HeldOut(blocks, 4.0).save(tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_part_of_a_held_out_set_is_the_same_part_each_time(probe):
    whole, part, again = (HeldOutText(probe, None, most) for most in (None, 3, 3))
    assert len(part.held_out.blocks) == 3
    assert np.array_equal(part.held_out.blocks.arrays["input_ids"], again.held_out.blocks.arrays["input_ids"])
    assert part.fingerprint() == again.fingerprint() != whole.fingerprint()
    assert HeldOutText(probe, None, 6).fingerprint() == whole.fingerprint()


@pytest.mark.parametrize("architecture", ["gpt2", "roberta"])
def test_drift_is_the_kl_divergence_from_the_earlier_model(probe, architecture):
    old, new = tiny.model(architecture), other(architecture)
    with torch.no_grad():  # distributions that are not nearly uniform
        for model in (old, new):
            model.get_output_embeddings().weight.mul_(40)
    task = HeldOutText(probe, None)
    objective = make_objective(None, old, tiny.tokenizer())
    how = Conditions("", tiny.tokenizer(), objective, batch_size=4)
    found = functional_drift(Checkpoint(old, objective), Checkpoint(new, objective), task, how)
    total, labels = 0.0, 0
    for row in range(6):
        batch = objective.collate(task.held_out.blocks.take([row]), [row])
        logits = [m(**objective.inputs(batch), **objective.options()).logits[0].double().tolist() for m in (old, new)]
        at = batch["positions"][0].tolist() if "positions" in batch else range(16)
        for place, label in zip(at, batch["labels"][0].tolist(), strict=True):
            if label != -100:
                p, q = ([math.exp(x) for x in each[place]] for each in logits)
                total += sum(a / sum(p) * math.log(a / sum(p) * sum(q) / b) for a, b in zip(p, q, strict=True))
                labels += 1
    assert found.value == pytest.approx(total / labels, rel=1e-5)
    assert found.low < found.value < found.high
    assert functional_drift(Checkpoint(old, objective), Checkpoint(old, objective), task, how).value == 0
    assert not old.training
