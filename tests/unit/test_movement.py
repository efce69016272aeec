"""How far layers moved, against a slow float64 computation from two models in memory."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from everlearn.errors import ModelError
from everlearn.model.architectures import architectures
from everlearn.model.depth import depth_groups, layers_of, places
from everlearn.model.movement import LoadedWeights, Moved, SavedWeights, movement, stable_ranks, together, whole
from everlearn.model.structure import architecture_of


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
    everything = whole(found)
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
