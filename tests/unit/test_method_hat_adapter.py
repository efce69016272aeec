"""HAT-Adapter: the gated adapters against a slow reference, and what stays as it was."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hard_attention_checks import classifier, hidden, learnt, reading, settle
from torch import Tensor

import stages
import tiny
from everlearn.methods.engine.attachment import attached
from everlearn.methods.gates.gated_mlp import GatedMLP
from everlearn.methods.gates.hat_adapter import GatedAdapter, HATAdapter


def gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def layer(x: list[float], weight: Tensor, bias: Tensor, gates: Tensor) -> list[float]:
    """h ← a ⊗ GELU(W x + b), number by number."""
    return [
        gates[i].item() * gelu(sum(weight[i, j].item() * x[j] for j in range(len(x))) + bias[i].item())
        for i in range(len(weight))
    ]


def test_an_adapter_by_hand() -> None:
    torch.manual_seed(0)
    values: dict[str, Tensor] = {}
    adapter = GatedAdapter("0", 6, 2, values).double()
    values.update({name: torch.rand(size).double() for name, size in GatedAdapter.units("0", 6, 2).items()})
    assert {name: len(value) for name, value in values.items()} == {
        "0.down.0": 2,
        "0.down.1": 2,
        "0.up.0": 6,
        "0.up.1": 6,
    }
    x = torch.randn(6).double()
    expected = x.tolist()
    for block, network in (("down", adapter.down), ("up", adapter.up)):
        for number, linear in enumerate(network.layers):
            expected = layer(expected, linear.weight, linear.bias, values[f"0.{block}.{number}"])
    torch.testing.assert_close(adapter(x), x + torch.tensor(expected).double())


def test_factors_of_a_network_entry_by_entry() -> None:
    """fc1: 1 − a by rows; fc2: 1 − min(a_post, a_pre); biases with their rows."""
    torch.manual_seed(1)
    network = GatedMLP("n", (5, 3, 4), torch.relu, {})
    a = {"n.0": torch.rand(3), "n.1": torch.rand(4)}
    factors = dict(network.factors({name: 1 - values for name, values in a.items()}))
    first, second = factors["layers.0.weight"].expand(3, 5), factors["layers.1.weight"].expand(4, 3)
    for i in range(3):
        assert all(first[i, j] == 1 - a["n.0"][i] for j in range(5))
    for i in range(4):
        for j in range(3):
            assert second[i, j].item() == pytest.approx(1 - min(a["n.1"][i].item(), a["n.0"][j].item()))
    assert torch.equal(factors["layers.0.bias"], 1 - a["n.0"])
    assert torch.equal(factors["layers.1.bias"], 1 - a["n.1"])
    assert factors.keys() == dict(network.named_parameters()).keys()


def test_adapters_sit_after_every_feed_forward_network() -> None:
    """What leaves the second projection is x + up(down(x)) of what the projection itself gives."""
    method, at = HATAdapter(), stages.stage(tiny.model())
    stages.begin([method], at)
    method.before_forward(at, {})
    plain, seen = [], []
    adapters = attached(at.model, "hat_adapter").adapters
    assert len(adapters) == 2
    for block, adapter in zip(at.model.roberta.encoder.layer, adapters, strict=True):
        block.output.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))

        def projected(_, inputs, block=block, adapter=adapter) -> None:
            weight, bias = block.output.dense.weight, block.output.dense.bias
            plain.append(adapter(inputs[0] @ weight.T + bias))

        block.output.dense.register_forward_pre_hook(projected)
        block.output.dropout.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    at.objective.forward(at.model, next(at.batches(2)))
    for expected, got in zip(plain, seen[1::2], strict=True):
        torch.testing.assert_close(got, expected)


def test_a_learnt_domain_stays_bit_for_bit_and_the_base_too() -> None:
    method, model, outputs = HATAdapter(), tiny.model(), []
    start = stages.weights(model)
    for index in (1, 2, 3):
        at = stages.stage(copy.deepcopy(model), index)
        stages.learn([method], at, weight_decay=0.1)
        settle(method)
        model = at.model
        assert all(torch.equal(value, start[name]) for name, value in stages.weights(model).items())
        outputs.append([hidden(method, at, f"d{number}") for number in range(1, index + 1)])
    assert torch.equal(outputs[0][0], outputs[2][0])
    assert torch.equal(outputs[1][1], outputs[2][1])
    assert not torch.equal(outputs[2][0], outputs[2][1])
    assert not torch.equal(outputs[2][0], hidden(method, at, None))


def test_without_protection_it_would_not_stay() -> None:
    method = HATAdapter()
    first = learnt(method, tiny.model(), 1)[0]
    before = hidden(method, first, "d1")
    method.mask = lambda stage: None  # type: ignore[method-assign]
    second = stages.stage(copy.deepcopy(first.model), 2)
    stages.learn([method], second)
    assert not torch.equal(before, hidden(method, second, "d1"))


def test_gradient_masks_are_undone_by_adam() -> None:
    """Why the default is `update`: with weight decay, Adam moves what a gradient mask holds back."""
    drift = {}
    for apply_to in ("update", "gradient"):
        method = HATAdapter(apply_to=apply_to)
        first = learnt(method, tiny.model(), 1)[0]
        before = hidden(method, first, "d1")
        second = stages.stage(copy.deepcopy(first.model), 2)
        stages.learn([method], second, weight_decay=0.1)
        drift[apply_to] = (hidden(method, second, "d1") - before).abs().max().item()
    assert drift["update"] == 0 < drift["gradient"]


def test_sizes_scale_with_the_model() -> None:
    sizes = []
    for options in ({}, {"reduction_factor": 4}, {"reduction_factor": 1000}):
        at = stages.stage(tiny.model())
        stages.begin([HATAdapter(**options)], at)
        sizes.append(attached(at.model, "hat_adapter").adapters[0].down.layers[0].out_features)
    assert sizes == [2, 8, 1]


def test_the_paper_fine_tunes_the_model_and_the_released_code_the_adapters_alone() -> None:
    for frozen in (False, True):
        method = HATAdapter(freeze_base_at_end_task=frozen)
        first = learnt(method, tiny.model(), 1)[0]
        model = method.test_model(classifier(first.model), reading(first, "d1"))
        model(input_ids=torch.arange(5, 25)[None]).logits.sum().backward()
        learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert any(name.startswith("everlearn_hat_adapter.adapters") for name in learning)
        assert any(name.startswith("classifier") for name in learning)
        assert any(name.startswith("roberta") for name in learning) != frozen
        assert "everlearn_hat_adapter.attention.embedding" not in learning
        other = method.test_model(classifier(first.model), reading(first, None))
        assert all(parameter.requires_grad for parameter in other.parameters())


def test_adapters_survive_a_memory_round_trip() -> None:
    method = HATAdapter()
    first, second = learnt(method, tiny.model(), 2)
    again = HATAdapter()
    again.load_memory(method.memory())
    for at, domain in ((first, "d1"), (second, "d2")):
        assert torch.equal(hidden(again, at, domain), hidden(method, at, domain))
