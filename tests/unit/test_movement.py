"""How far layers moved, against a slow float64 computation from two models in memory."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from everlearn.errors import ModelError
from everlearn.model.architectures import architecture_of
from everlearn.model.movement import LoadedWeights, Moved, SavedWeights, movement, places, together


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
    found = places(weights.shapes(), architecture_of(model.config.model_type))
    assert found.keys() == weights.shapes().keys()
    layers = list(dict.fromkeys(layer for layer, _ in found.values()))
    stacks = ["encoder", "decoder"] if architecture == "t5" else ["layers"]
    middle = [f"{stack}.{number}" for stack in stacks for number in range(2)]
    assert layers == ["embeddings", *middle, *[last for last in ("other", "head") if last in layers]]
    parts = {part for layer, part in found.values() if layer in middle}
    attentions = {"self_attention", "cross_attention"} if architecture == "t5" else {"attention"}
    assert parts == {*attentions, "feed-forward", "other"}


def test_norms_are_those_of_a_slow_computation(pair):
    before, after = SavedWeights(pair / "before"), SavedWeights(pair / "after")
    found = movement(before, after, architecture_of("roberta"))
    old, new = (load_file(pair / name / "model.safetensors") for name in ("before", "after"))
    where = places(after.shapes(), architecture_of("roberta"))
    for part in found:
        names = [name for name, place in where.items() if place == (part.layer, part.part)]
        pairs = [
            (float(a), float(b)) for name in names for a, b in zip(old[name].ravel(), new[name].ravel(), strict=True)
        ]
        assert part.change == pytest.approx(math.sqrt(sum((b - a) ** 2 for a, b in pairs)), rel=1e-12)
        assert part.norm == pytest.approx(math.sqrt(sum(a**2 for a, _ in pairs)), rel=1e-12)
        assert (part.moved, part.count) == (sum(a != b for a, b in pairs), len(pairs))
    layers = together(found)
    query = old["roberta.encoder.layer.1.attention.self.query.weight"].double()
    others = sum(v.double().square().sum() for n, v in old.items() if where[n][0] == "layers.1")
    assert layers["layers.1"].relative == pytest.approx(float(0.5 * query.norm() / others.sqrt()), rel=1e-6)
    assert layers["embeddings"].moved == 32
    assert layers["layers.0"].change == 0 == layers["layers.0"].share


def test_files_in_parts_and_a_model_in_memory_say_the_same(pair, tmp_path):
    model = tiny.model("roberta")
    model.load_state_dict(load_file(pair / "after" / "model.safetensors"), strict=False)
    model.tie_weights()
    saved(model, tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 3
    whole = movement(SavedWeights(pair / "before"), SavedWeights(pair / "after"), architecture_of("roberta"))
    first = tiny.model("roberta")
    first.load_state_dict(load_file(pair / "before" / "model.safetensors"), strict=False)
    first.tie_weights()
    for before in (SavedWeights(pair / "before"), LoadedWeights(first.state_dict())):
        parts = movement(before, SavedWeights(tmp_path / "parts"), architecture_of("roberta"))
        assert together(parts).keys() == together(whole).keys()
        for layer, one in together(parts).items():
            assert one.change == pytest.approx(together(whole)[layer].change, rel=1e-9, abs=1e-12)
            assert (one.moved, one.count) == (together(whole)[layer].moved, together(whole)[layer].count)


def test_a_model_that_grew_is_not_compared(pair, tmp_path):
    taller, before = tiny.model("roberta", num_hidden_layers=3), SavedWeights(pair / "before")
    assert movement(before, saved(taller, tmp_path / "taller"), architecture_of("roberta")) is None
    wider = tiny.model("roberta", intermediate_size=96)
    assert movement(before, saved(wider, tmp_path / "wider"), architecture_of("roberta")) is None


def test_nothing_before_has_no_relative_change():
    assert Moved("layers.0", "attention", 0.5, 0.0, 3, 4).relative is None
    assert Moved("layers.0", "attention", 0.5, 2.0, 3, 4).share == 0.75


@pytest.mark.parametrize("content", [None, "x", "[]", '{"weight_map": {"a": "absent.safetensors"}}'])
def test_weights_that_cannot_be_read_get_a_sentence(tmp_path, content):
    if content is not None:
        (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"cannot be read|is damaged"):
        SavedWeights(tmp_path)
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert SavedWeights(tmp_path).shapes() == {"a": (2,)}
