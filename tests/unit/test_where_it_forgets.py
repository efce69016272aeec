"""Blends, drift, repair and movement of checkpoints, against float64."""

from __future__ import annotations

import contextlib
import itertools
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.diagnostics.checkpoint_distance import Pair, functional_drift
from everlearn.diagnostics.interpolation import GoingBack, _add, _layers, blender, everywhere
from everlearn.diagnostics.pages import sentences
from everlearn.diagnostics.repair import PRECISION, STEPS, Repair, largest_step, search_repair
from everlearn.errors import ModelError, RecipeError
from everlearn.evaluation import text_cell
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.task import Conditions
from everlearn.model.architectures import architectures
from everlearn.model.depth import depth_groups, layers_of, places
from everlearn.model.objectives import make_objective
from everlearn.model.structure import architecture_of
from everlearn.model.weight_movement import (
    LoadedWeights,
    Moved,
    SavedWeights,
    movement,
    stable_ranks,
    together,
    total_movement,
)
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
    with blender(model, before) as put:
        for share in (0.0, 0.25, 1.0):
            put(everywhere(share))
            for name, p in model.named_parameters():
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
    with blender(model, old) as put:
        for blend in blends:
            put(blend)
            own = [name for name, p in model.named_parameters() if not torch.equal(p, new[name])]
            assert all(torch.equal(model.get_parameter(name), old[name]) for name in own)
            back += own
    # A bias of zeros is the same in both.
    assert sorted(back) == sorted(name for name in new if not torch.equal(new[name], old[name]))


def test_an_interrupted_look_leaves_the_model_as_it_was():
    old, model = dict(tiny.model("gpt2").named_parameters()), other("gpt2")
    new = {name: p.detach().clone() for name, p in model.named_parameters()}
    with contextlib.suppress(KeyboardInterrupt), blender(model, old) as put:
        put(everywhere(0.5))
        assert not all(torch.equal(p, new[name]) for name, p in model.named_parameters())
        raise KeyboardInterrupt
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


LINES = {
    "grows": lambda s: s**2,
    "falls at first": lambda s: s * (s - 0.5),
    "over a hill and back": lambda s: 0.3 * np.sin(np.pi * s) ** 2,
    "never": lambda s: -s,
    "at once": lambda s: 10.0 * (s > 0),
    "wall": lambda s: float(s > 0.33),
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("budget", [0.0, 0.02, 0.2])
def test_the_largest_step_within_the_budget(line, budget):
    asked: list[float] = []

    def lost(step):
        asked.append(step)
        return LINES[line](step)

    found = largest_step(lost, budget)
    assert LINES[line](found) <= budget
    fine = np.linspace(0, 1, 100_001)
    wanted = max(s for s in fine if LINES[line](s) <= budget)
    assert wanted - PRECISION <= found <= wanted + 1e-9
    assert len(asked) == len(set(asked)) <= STEPS + 4
    assert 0 < min(asked) <= max(asked) == 1


@pytest.mark.parametrize("count", [2, 3, 7, 16, 50, 257])
def test_halves_have_no_block_in_common_and_text_from_everywhere(count):
    ids = np.arange(count, dtype=np.int32)[:, None].repeat(4, 1)
    whole = HeldOut(PackedBlocks({"input_ids": ids}, seed=0), 3.0)
    halves = [whole.half(number).blocks.arrays["input_ids"][:, 0].tolist() for number in (0, 1)]
    assert sorted(halves[0] + halves[1]) == list(range(count))
    assert abs(len(halves[0]) - len(halves[1])) <= max(2, count / 8)
    if count >= 50:
        for each in halves:
            assert sum(a + 1 == b for a, b in itertools.pairwise(each)) > 0.6 * len(each), "in stretches"
            assert abs(np.mean(each) - (count - 1) / 2) < count / 10


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ((0.01, 0.005, 0.015), "The budget is kept there."),
        ((0.019, 0.01, 0.03), "The budget is kept there, by less than the margin of error"),
        ((0.021, 0.01, 0.03), "The budget is not kept there, by less than the margin of error"),
        ((0.05, 0.04, 0.06), "The budget is not kept there."),
    ],
)
def test_what_is_said_of_the_other_half(lost, says):
    found = Repair(
        "base", "a", "general", 0.02, False, 0.5, {1.0: Estimate(1.0)}, (8, 8), Estimate(0.3), Estimate(*lost)
    )
    assert says in sentences(found)
    assert found.kept == (lost[0] <= 0.02)
    assert "50.0 % is the largest step" in sentences(found)


@pytest.mark.parametrize(
    ("budget", "text", "says"),
    [(float("inf"), None, "`--budget` is inf"), (-1.0, None, "0 or more"), (0.1, "", "`--text` is empty")],
)
def test_what_is_no_budget_is_refused_before_anything_is_read(budget, text, says):
    with pytest.raises(RecipeError, match=says):
        search_repair(None, Pair(0, 1), budget, text=text)


def saved(model, folder, **options):
    model.save_pretrained(folder, **options)
    return SavedWeights(folder)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model before and after: a matrix of the second layer and a row of the embeddings moved."""
    folder = tmp_path_factory.mktemp("models")
    model = tiny.model("roberta")
    saved(model, folder / "before")
    with torch.no_grad():
        model.roberta.encoder.layer[1].attention.self.query.weight.mul_(1.5)
        model.roberta.embeddings.word_embeddings.weight[7] += 0.25
    saved(model, folder / "after")
    return folder


@pytest.mark.parametrize("architecture", sorted(tiny.ARCHITECTURES))
def test_every_tensor_has_a_place_and_layers_come_in_order(architecture, tmp_path):
    model = tiny.model(architecture)
    weights = saved(model, tmp_path / "model")
    found = places(weights.shapes(), architecture_of(model))
    assert found.keys() == weights.shapes().keys()
    layers = list(dict.fromkeys(layer for layer, _ in found.values()))
    stacks = ["encoder", "decoder"] if architecture in ("t5", "bart") else ["layers"]
    middle = [f"{stack}.{number}" for stack in stacks for number in range(2)]
    assert layers == ["embeddings", *middle, *[last for last in ("other", "head") if last in layers]]
    parts = {part for layer, part in found.values() if layer in middle}
    attentions = {"self_attention", "cross_attention"} if architecture in ("t5", "bart") else {"attention"}
    assert parts == {*attentions, "feed-forward", "other"}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("architecture", sorted(tiny.ARCHITECTURES))
def test_names_groups_and_modules_tell_the_same_depth(architecture: str, wrapped: bool) -> None:
    model = tiny.model(architecture)
    if wrapped:
        model = torch.nn.ModuleDict({"module": model})
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    stacks = layers_of(model)
    where = places(shapes, architecture_of(model))
    groups, number = depth_groups(model), 0
    for stack, path, layers in stacks:
        for index, layer in enumerate(layers):
            number += 1
            own = {f"{path}.{index}.{name}" for name, _ in layer.named_parameters()}
            assert own == {name for name, (place, _) in where.items() if place == f"{stack.name}.{index}"}
            assert own <= set(groups[number])
            assert {where[name][0] for name in set(groups[number]) - own} <= {"other", "embeddings"}, (
                "a norm between two stacks"
            )
    assert number == len(groups) - 2
    assert {where[name][0] for name in groups[0]} <= {"embeddings"}


def test_norms_are_those_of_a_slow_computation(pair):
    before, after = SavedWeights(pair / "before"), SavedWeights(pair / "after")
    found = movement(before, after, architectures()["roberta"])
    old, new = (load_file(pair / name / "model.safetensors") for name in ("before", "after"))
    where = places(after.shapes(), architectures()["roberta"])
    for part in found:
        names = [name for name, place in where.items() if place == (part.layer, part.part)]
        pairs = [
            (float(a), float(b)) for name in names for a, b in zip(old[name].ravel(), new[name].ravel(), strict=True)
        ]
        assert part.change == pytest.approx(math.sqrt(sum((b - a) ** 2 for a, b in pairs)), rel=1e-12)
        assert part.norm == pytest.approx(math.sqrt(sum(a**2 for a, _ in pairs)), rel=1e-12)
        assert (part.moved, part.count) == (sum(a != b for a, b in pairs), len(pairs))
        assert part.after == pytest.approx(math.sqrt(sum(b**2 for _, b in pairs)), rel=1e-12)
        assert part.product == pytest.approx(sum(a * b for a, b in pairs), rel=1e-12)
        assert part.largest == max(abs(b - a) for a, b in pairs)
    layers = together(found)
    query = old["roberta.encoder.layer.1.attention.self.query.weight"].double()
    others = sum(v.double().square().sum() for n, v in old.items() if where[n][0] == "layers.1")
    assert layers["layers.1"].relative == pytest.approx(float(0.5 * query.norm() / others.sqrt()), rel=1e-6)
    assert layers["embeddings"].moved == 32
    assert layers["layers.0"].change == 0 == layers["layers.0"].share
    assert layers["layers.0"].cosine == pytest.approx(1, rel=1e-12)
    flat = [torch.cat([weights[name].double().ravel() for name in where]) for weights in (old, new)]
    everything = total_movement(found)
    assert everything.relative == pytest.approx(float((flat[1] - flat[0]).norm() / flat[0].norm()), rel=1e-12)
    assert everything.cosine == pytest.approx(float(torch.cosine_similarity(*flat, dim=0)), rel=1e-12)
    assert everything.largest == float((flat[1] - flat[0]).abs().max())


def test_stable_ranks_are_those_of_a_singular_value_decomposition(pair):
    before, after = SavedWeights(pair / "before"), SavedWeights(pair / "after")
    found = stable_ranks(before, after)
    query = "roberta.encoder.layer.1.attention.self.query.weight"
    assert found.keys() == {query, "roberta.embeddings.word_embeddings.weight"}, "what did not move has none"
    values = torch.linalg.svdvals(0.5 * before.read(query).double())
    assert found[query] == pytest.approx(float(values.square().sum() / values[0] ** 2), rel=1e-6)
    assert found["roberta.embeddings.word_embeddings.weight"] == pytest.approx(1, rel=1e-6), "one row moved"


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e12])
def test_a_stable_rank_knows_no_scale(scale):
    old, new = (LoadedWeights({"a": torch.diag(torch.tensor(d)), "b": torch.ones(3)}) for d in ([0.0] * 3, [3.0, 2, 1]))
    new = LoadedWeights({"a": new.read("a") * scale, "b": torch.zeros(3)})
    assert stable_ranks(old, new) == {"a": pytest.approx(14 / 9, rel=1e-6)}


def test_parts_of_a_layer_are_one_group():
    parts = [
        Moved("layers.0", "a", 3.0, 1.0, 3, 4, 4.0, 0.5, 1.0),
        Moved("layers.0", "b", 4.0, 0.0, 1, 1, 3.0, 0.5, 2.0),
    ]
    both = together(parts)["layers.0"]
    assert (both.change, both.after, both.largest, both.cosine) == (5.0, 5.0, 2.0, pytest.approx(0.2))


def test_files_in_parts_and_a_model_in_memory_say_the_same(pair, tmp_path):
    model = tiny.model("roberta")
    model.load_state_dict(load_file(pair / "after" / "model.safetensors"), strict=False)
    model.tie_weights()
    saved(model, tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 3
    whole = movement(SavedWeights(pair / "before"), SavedWeights(pair / "after"), architectures()["roberta"])
    first = tiny.model("roberta")
    first.load_state_dict(load_file(pair / "before" / "model.safetensors"), strict=False)
    first.tie_weights()
    for before in (SavedWeights(pair / "before"), LoadedWeights(first.state_dict())):
        parts = movement(before, SavedWeights(tmp_path / "parts"), architectures()["roberta"])
        assert together(parts).keys() == together(whole).keys()
        for layer, one in together(parts).items():
            assert one.change == pytest.approx(together(whole)[layer].change, rel=1e-9, abs=1e-12)
            assert (one.moved, one.count) == (together(whole)[layer].moved, together(whole)[layer].count)


def test_a_model_that_grew_is_not_compared(pair, tmp_path):
    taller, before = tiny.model("roberta", num_hidden_layers=3), SavedWeights(pair / "before")
    assert movement(before, saved(taller, tmp_path / "taller"), architectures()["roberta"]) is None
    wider = tiny.model("roberta", intermediate_size=96)
    assert movement(before, saved(wider, tmp_path / "wider"), architectures()["roberta"]) is None


def test_nothing_before_has_no_relative_change():
    assert Moved("layers.0", "attention", 0.5, 0.0, 3, 4, 0.5, 0.0, 0.5).relative is None
    assert Moved("layers.0", "attention", 0.5, 2.0, 3, 4, 2.0, 4.0, 0.5).share == 0.75


@pytest.mark.parametrize("content", [None, "x", "[]", '{"weight_map": {"a": "absent.safetensors"}}'])
def test_weights_that_cannot_be_read_get_a_sentence(tmp_path, content):
    if content is not None:
        (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"cannot be read|is damaged"):
        SavedWeights(tmp_path)
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert SavedWeights(tmp_path).shapes() == {"a": (2,)}
