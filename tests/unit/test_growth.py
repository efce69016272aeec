"""Growing preserves what a model computes: exactly where that is possible, and roughly where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import ModelError
from everlearn.methods.growth.growth import added_parameters, choose_layers, copy_map, grow, key_value_heads
from everlearn.model.anatomy import anatomy

FAMILIES = ("roberta", "bert", "gpt2", "llama", "qwen2")
PRE_NORM = ("gpt2", "llama", "qwen2")
EXACT = {"llama": 1e-6, "qwen2": 1e-6}
"""Their normalisation computes in float32 whatever the weights are."""


def exact_model(architecture: str) -> nn.Module:
    """Float64, with biases and normalisations that are not at their neutral start."""
    model = tiny.model(architecture, attn_implementation="eager").double()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {"input_ids": torch.randint(5, tiny.VOCABULARY, (3, 20), generator=generator)}


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(**inputs()).logits


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_whole_multiple_of_the_width_preserves_the_function(architecture: str, times: int) -> None:
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, heads=key_value_heads(model) * (times - 1))
    assert grown.model.config.hidden_size == 32 * times
    assert grown.model.config.num_attention_heads == 4 * times
    assert anatomy(grown.model).sites[1].units == anatomy(model).sites[1].units * times
    torch.testing.assert_close(logits(grown.model), logits(model), rtol=0, atol=EXACT.get(architecture, 1e-10))
    before, after = (m(**inputs(), output_hidden_states=True).hidden_states[1] for m in (model, grown.model))
    torch.testing.assert_close(after, before[..., grown.hidden], rtol=0, atol=EXACT.get(architecture, 1e-10))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_heads_and_neurons_are_exact_and_only_the_normalisation_is_not(architecture: str) -> None:
    """One head more: the first layer's attention gives what it gave, on a hidden state that is copied by hand."""
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, heads=1)
    for site, larger in zip(anatomy(model).sites[1:3], anatomy(grown.model).sites[1:3], strict=True):
        assert larger.units > site.units
    seen: dict[int, list[Tensor]] = {}
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 6, 32, generator=generator, dtype=torch.float64)
    for which, (m, states) in enumerate(((model, hidden), (grown.model, hidden[..., grown.hidden]))):
        layer = anatomy(m).sites[1].module.rsplit(".", 2 if architecture not in ("gpt2", "llama", "qwen2") else 1)[0]
        block = m.get_submodule(layer)
        if architecture in ("roberta", "bert"):
            seen[which] = [block.output.dense(F.gelu(block.intermediate.dense(states)))]
        else:
            seen[which] = [block(states)]
    torch.testing.assert_close(seen[1][0], seen[0][0][..., grown.hidden], rtol=0, atol=1e-10)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_paper_s_step_stays_near(architecture: str) -> None:
    """One head and one layer more is an approximation: far nearer to the model than another model is."""
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, (1,), 1)
    step = (logits(grown.model) - logits(model)).pow(2).mean()
    other = (logits(tiny.model(architecture, seed=9).double()) - logits(model)).pow(2).mean()
    assert 0 < step < other


@pytest.mark.parametrize("architecture", PRE_NORM)
def test_layers_that_write_nothing_preserve_the_function(architecture: str) -> None:
    model = exact_model(architecture)
    torch.manual_seed(1)
    grown = grow(model, (0, 1, 1), key_value_heads(model), new_layers="identity")
    assert grown.origins == (0, 0, 1, 1, 1)
    torch.testing.assert_close(logits(grown.model), logits(model), rtol=0, atol=EXACT.get(architecture, 1e-10))
    loss = grown.model(**inputs()).logits.pow(2).mean()
    loss.backward()
    writer = anatomy(grown.model).sites[3].module
    assert grown.model.get_submodule(writer).weight.grad.abs().sum() > 0, "new layers learn"


def test_copied_layers_are_copies_in_their_place() -> None:
    model = exact_model("roberta")
    grown = grow(model, (1,))
    layers, old = grown.model.roberta.encoder.layer, model.roberta.encoder.layer
    for new, origin in zip(layers, (0, 1, 1), strict=True):
        for name, parameter in new.named_parameters():
            assert torch.equal(parameter, old[origin].get_parameter(name))
    assert torch.equal(grown.hidden, torch.arange(32))


@pytest.mark.parametrize("architecture", FAMILIES)
def test_parameters_are_as_many_as_declared_and_the_model_is_a_plain_one(architecture: str, tmp_path: Path) -> None:
    model = tiny.model(architecture)
    declared = added_parameters(model, 2, 1)
    grown = grow(model, (0, 1), 1, noise=0.01).model
    count = [sum(p.numel() for p in m.parameters()) for m in (model, grown)]
    assert count[1] - count[0] == declared
    assert grown.state_dict().keys() > model.state_dict().keys()
    grown.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(logits(plain), logits(grown))
    again = grow(plain, (0,), 1).model
    assert again.config.num_hidden_layers == 5
    assert again.config.vocab_size == model.config.vocab_size
    assert torch.isfinite(logits(again)).all()


def test_noise_breaks_the_symmetry_of_copies_and_only_theirs() -> None:
    model = exact_model("roberta")
    results = {}
    for noise in (0.0, 0.01):
        torch.manual_seed(1)
        grown = grow(model, heads=4, noise=noise)
        weight = grown.model.roberta.encoder.layer[0].intermediate.dense.weight
        results[noise] = weight
        twins = [torch.nonzero(grown.hidden == feature).flatten() for feature in range(32)]
        same = [torch.equal(weight[:, a], weight[:, b]) for a, b in twins]
        assert all(same) if noise == 0 else not any(same)
    assert torch.equal(results[0.0][:, :32], results[0.01][:, :32]), "what was there is not disturbed"
    spread = (results[0.01] - results[0.0])[:, 32:].std().item()
    assert spread == pytest.approx(0.01, rel=0.1)


def test_copies_of_neurons_learn_apart_with_noise() -> None:
    """Without noise two copies get the same gradient for ever."""
    for noise in (0.0, 0.01):
        torch.manual_seed(1)
        grown = grow(exact_model("roberta"), heads=4, noise=noise).model
        grown(**inputs()).logits.pow(2).mean().backward()
        gradient = grown.roberta.encoder.layer[0].intermediate.dense.weight.grad
        nearest = [(gradient[:64] - row).abs().sum(1).min() for row in gradient[64:]]
        equal = [float(gap) < 1e-12 for gap in nearest]
        assert all(equal) if noise == 0 else not any(equal)


def test_the_copy_map_copies_equally_often() -> None:
    torch.manual_seed(0)
    for new in (5, 7, 10, 12, 23):
        chosen = copy_map(5, new)
        counts = torch.bincount(chosen, minlength=5)
        assert torch.equal(chosen[:5], torch.arange(5))
        assert len(chosen) == new
        assert counts.max() - counts.min() <= (new % 5 > 0)


def test_layers_are_copied_in_turn() -> None:
    """No layer is chosen before those whose ancestor has fewer copies (ELLE's list of candidates)."""
    torch.manual_seed(0)
    for _ in range(20):
        lineage = list(range(6))
        for amount in (2, 2, 1, 1):
            layers = choose_layers(lineage, amount)
            assert len({lineage[layer] for layer in layers}) == amount
            lineage = [ancestor for i, ancestor in enumerate(lineage) for _ in range(1 + layers.count(i))]
        assert sorted(lineage) == sorted([*range(6)] * 2), "twelve layers: each of the six twice"
    assert choose_layers([0], 3) == (0, 0, 0)


def test_frozen_weights_stay_frozen() -> None:
    model = tiny.model("gpt2")
    model.transformer.wpe.weight.requires_grad_(False)
    grown = grow(model, (0,), 1).model
    assert [name for name, p in grown.named_parameters() if not p.requires_grad] == ["transformer.wpe.weight"]


def test_what_cannot_be_grown_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'t5' model cannot be grown; those that can are bert, .*gpt2.*roberta"):
        grow(tiny.model("t5"), heads=1)
    with pytest.raises(ModelError, match=r"cannot be identities.*normalises the sum"):
        grow(tiny.model("roberta"), (0,), new_layers="identity")


def test_the_objective_works_on_a_grown_model() -> None:
    stage = stages.stage(grow(tiny.model("gpt2"), (1,), 1).model, 2, "causal")
    assert torch.isfinite(stage.objective.forward(stage.model, next(stage.batches(4))).loss)
