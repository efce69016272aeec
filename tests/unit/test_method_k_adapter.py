"""K-Adapter: sizes, the chain against a slow reference, who sees whom, and what stays as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hard_attention_checks import classifier, reading
from torch import Tensor, nn
from transformers import RobertaConfig, RobertaForMaskedLM

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.composition.k_adapter import KAdapter
from everlearn.methods.composition.knowledge import Chain
from everlearn.methods.engine.attachment import attached

IDS = torch.arange(5, 53).view(2, 24)
DEPTHS = [0, 1, 2]


def learnt(method: KAdapter, model: Any, domains: int = 1, objective: str = "masked", **options: Any) -> list[Any]:
    """A stream in a plain loop; then every chain gets values that show."""
    done = [stages.stage(model, index, objective) for index in range(1, domains + 1)]
    for at in done:
        stages.learn([method], at, **options)
    generator = torch.Generator().manual_seed(5)
    for kept in method._learnt.values():
        for value in kept.values():
            value.add_(torch.randn(value.shape, generator=generator) * 0.2)
    return done


def read_with(method: KAdapter, model: Any, at: Any, domain: str | None = "d1") -> Any:
    """The model as the method tests it on a text of a domain."""
    return method.test_model(copy.deepcopy(model).eval(), reading(at, domain))


def test_it_is_as_large_as_published() -> None:
    """RoBERTa-large, one source: 47.25 million numbers, of which 42.53 in transformer layers."""
    config = RobertaConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    with torch.device("meta"):
        model = RobertaForMaskedLM(config)
        method = KAdapter()
        chain = method._chain(model)
    assert method._depths(model) == [0, 11, 22]
    assert round(sum(p.numel() for p in chain.parameters()) / 1e6, 2) == 47.25
    assert round(method.cost(model).parameters / 1e6, 2) == 47.25
    inner = sum(p.numel() for adapter in chain.adapters for p in adapter.layers.parameters())  # type: ignore[union-attr]
    assert round(inner / 1e6, 2) == 42.53
    first: Any = chain.adapters[0]
    assert first.down.weight.shape == (768, 1024)
    assert (first.layers[0].heads, first.layers[0].inner.out_features) == (12, 3072)


def norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def by_hand(kept: dict[str, Tensor], states: list[Tensor], sees: Tensor, heads: int = 3) -> Tensor:
    """C_K of one chain in float64, token by token of the attention, from H at its depths."""
    w = {name: value.double() for name, value in kept.items()}
    carried = torch.zeros_like(states[0])
    for number, state in enumerate(states):
        x = state + carried
        at = f"adapters.{number}."

        def linear(name: str, x: Tensor, at: str = at) -> Tensor:
            return x @ w[f"{at}{name}.weight"].T + w[f"{at}{name}.bias"]

        t = linear("down", x)
        for layer in ("layers.0.", "layers.1."):
            q, k, v = (linear(f"{layer}{part}", t) for part in ("query", "key", "value"))
            size = t.shape[-1] // heads
            context = torch.zeros_like(t)
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                for i in range(t.shape[1]):
                    scores = (q[:, i, None, part] * k[:, :, part]).sum(-1) / size**0.5
                    weights = (scores.exp() * sees[i]) / (scores.exp() * sees[i]).sum(1, keepdim=True)
                    context[:, i, part] = (weights[:, :, None] * v[:, :, part]).sum(1)
            t = norm(t + linear(f"{layer}output", context), w, f"{at}{layer}attended")
            inner = linear(f"{layer}inner", t)
            inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
            t = norm(t + linear(f"{layer}outer", inner), w, f"{at}{layer}passed")
        carried = x + linear("up", t)
    return carried


@torch.no_grad()
def hidden_states(model: Any) -> list[Tensor]:
    """H[0] (embeddings), H[1], … of the plain model in float64."""
    plain = copy.deepcopy(model).double()
    return list(plain.base_model(IDS, output_hidden_states=True).hidden_states)


@pytest.mark.parametrize("combine", ["sum", "gate"])
def test_a_language_model_reads_what_the_adapters_add(combine: Any) -> None:
    method, model = KAdapter(depths=DEPTHS, combine=combine), tiny.model()
    at = learnt(method, model, 2)[-1]
    states = hidden_states(model)
    everybody = torch.ones(24, 24, dtype=torch.float64)
    expected = states[2]
    for domain in ("d1", "d2"):
        kept = method._learnt[domain]
        added = by_hand(kept, states, everybody) - sum(states)
        if combine == "gate":
            w, b = (kept[f"gate.{part}"].double() for part in ("weight", "bias"))
            added = added / (1 + torch.exp(-(states[2] @ w.T + b)))
        with torch.no_grad():
            found = at.objective.hidden(read_with(method, model, at, domain), {"input_ids": IDS})
        torch.testing.assert_close(found.double(), states[2] + added, rtol=1e-3, atol=1e-4)
        expected = expected + added
    together = KAdapter(depths=DEPTHS, combine=combine, read="all")
    assert not together.needs.domain_id_test
    together.load_memory(method.memory())
    with torch.no_grad():
        found = at.objective.hidden(read_with(together, model, at, None), {"input_ids": IDS})
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


def test_a_classifier_reads_hidden_state_and_chains_side_by_side() -> None:
    method, model = KAdapter(depths=[0, 2], read="all"), tiny.model()
    at = learnt(method, model, 2)[-1]
    plain = classifier(model)
    with_chains = read_with(method, plain, at, None)
    fused = attached(with_chains, "k_adapter").fused
    assert fused.weight.shape == (32, 3 * 32)
    with torch.no_grad():  # it begins at the model's own hidden state
        torch.testing.assert_close(with_chains(input_ids=IDS).logits, plain(input_ids=IDS).logits)
        fused.weight.normal_(std=0.1)
        fused.bias.normal_(std=0.1)
        found = with_chains.roberta(input_ids=IDS).last_hidden_state.double()
        states = hidden_states(model)
        every = torch.ones(24, 24, dtype=torch.float64)
        chains = [by_hand(method._learnt[domain], [states[0], states[2]], every) for domain in ("d1", "d2")]
        expected = torch.cat([states[2], *chains], -1) @ fused.weight.double().T + fused.bias.double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_an_adapter_begins_near_the_identity() -> None:
    model = tiny.model()
    at = stages.stage(model)
    batch = next(at.batches(8))
    with torch.no_grad():
        before = at.objective.per_sample_loss(model, batch)
        stages.begin([KAdapter(depths=DEPTHS)], at)
        chain: Chain = attached(model, "k_adapter").chains[0]
        spread = torch.cat([w.flatten() for a in chain.adapters for w in (a.down.weight, a.up.weight)]).std()  # type: ignore[union-attr]
        assert spread == pytest.approx(2e-4, rel=0.05)
        after = at.objective.per_sample_loss(model, batch)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("architecture", ["roberta", "t5"])
def test_padding_is_not_attended_to(architecture: str) -> None:
    """The released code attends to it."""
    method, model = KAdapter(depths=DEPTHS), tiny.model(architecture)
    (at,) = learnt(method, model, objective=tiny.objective_of(architecture))
    reader = read_with(method, model, at)
    reader = reader.encoder if architecture == "t5" else reader.roberta
    padded, mask = torch.full((2, 30), 1), torch.zeros(2, 30, dtype=torch.long)
    padded[:, :24], mask[:, :24] = IDS, 1
    with torch.no_grad():
        short = reader(input_ids=IDS).last_hidden_state
        long = reader(input_ids=padded, attention_mask=mask).last_hidden_state[:, :24]
    torch.testing.assert_close(long, short, rtol=1e-4, atol=1e-4)


def test_a_token_sees_its_own_document_up_to_itself() -> None:
    method, model = KAdapter(depths=DEPTHS), tiny.model("llama")
    (at,) = learnt(method, model, objective="causal")
    reader = read_with(method, model, at)
    positions = torch.tensor([[*range(10), *range(14)]] * 2)

    @torch.no_grad()
    def hidden(ids: Tensor, **more: Tensor) -> Tensor:
        return at.objective.hidden(reader, {"input_ids": ids, **more})

    packed = hidden(IDS, position_ids=positions)
    torch.testing.assert_close(packed[:, :10], hidden(IDS[:, :10]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(packed[:, 10:], hidden(IDS[:, 10:]), rtol=1e-4, atol=1e-4)
    other = IDS.clone()
    other[:, 20] = 300
    changed = (hidden(other, position_ids=positions) - packed).abs().amax(-1)
    assert changed[:, :20].max() < 1e-5
    assert changed[:, 20:].min() > 1e-4


def test_nothing_of_earlier_domains_changes() -> None:
    method, model = KAdapter(), tiny.model()
    start = stages.weights(model)
    (first,) = learnt(method, model)
    with torch.no_grad():
        read = first.objective.hidden(read_with(method, model, first), {"input_ids": IDS})
    before = copy.deepcopy(method._learnt["d1"])
    second = stages.stage(model, 2)
    stages.learn([method], second)
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in method._learnt["d1"].items())
    with torch.no_grad():  # chains have dropout of their own, but not at test
        assert torch.equal(second.objective.hidden(read_with(method, model, second), {"input_ids": IDS}), read)
        plain = second.objective.hidden(model, {"input_ids": IDS})
        assert torch.equal(second.objective.hidden(read_with(method, model, second, None), {"input_ids": IDS}), plain)
    assert read_with(method, model, second, "d3").state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("options", "base", "chains"),
    [
        ({}, True, True),
        ({"freeze_adapters_at_end_task": True}, True, False),
        ({"freeze_base_at_end_task": True}, False, True),
    ],
)
def test_what_an_end_task_moves(options: dict[str, bool], base: bool, chains: bool) -> None:
    method, model = KAdapter(**options), tiny.model()
    (at,) = learnt(method, model)
    tuned = read_with(method, classifier(model), at).train()
    # Behind a random projection: at [I 0] the chains get no gradient in the first step.
    nn.init.normal_(attached(tuned, "k_adapter").fused.weight, std=0.1)
    tuned(input_ids=IDS).logits.square().sum().backward()
    moved = {name for name, p in tuned.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {"everlearn_k_adapter.fused.weight", "classifier.out_proj.weight"} <= moved
    assert any(name.startswith("roberta.") for name in moved) is base
    assert any(name.startswith("everlearn_k_adapter.chains.") for name in moved) is chains


def test_frozen_chains_have_their_dropout_while_an_end_task_is_fine_tuned() -> None:
    """As in the released code, which freezes the adapters and leaves them in training mode."""
    model = tiny.model()
    found = []
    for dropout in (0.1, 0.0):
        method = KAdapter(freeze_adapters_at_end_task=True, adapter_dropout=dropout)
        (at,) = learnt(method, model)
        tuned = read_with(method, classifier(model), at)
        nn.init.normal_(attached(tuned, "k_adapter").fused.weight, std=0.1)
        with torch.no_grad():
            for mode in (True, False):  # the model itself has no dropout
                first, second = (tuned.train(mode)(input_ids=IDS).logits for _ in range(2))
                found.append(torch.equal(first, second))
    assert found == [False, True, True, True]


def test_depths_that_are_not_there_are_refused() -> None:
    for depths in ([0, 3], [1, 0], [-1], [0, 0]):
        method = KAdapter(depths=depths)
        with pytest.raises(MethodError, match=r"'k_adapter', option 'depths': rising numbers from 0 to the model's 2"):
            method.check(stages.setting(tiny.model(), [method]))
    with pytest.raises(MethodError, match="option 'depths'"):
        KAdapter(depths=[])
