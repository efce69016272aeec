"""MoE-LoRA: forward pass and balance against float64 loops over tokens and experts, and a base that stays the base."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.adapters.moe_lora import MoELoRA, routers
from everlearn.methods.base import Reading
from everlearn.methods.engine.protection import Protection
from everlearn.model.anatomy import anatomy

E, R, ALPHA = 3, 2, 6


def attached(architecture: str = "roberta", **options: Any) -> tuple[MoELoRA, Any]:
    """The method at work on a model, experts and routers far from their first values."""
    method = MoELoRA(**({"experts": E, "r": R, "lora_alpha": ALPHA, "lora_dropout": 0.0} | options))
    stage = stages.stage(tiny.model(architecture), 1, tiny.objective_of(architecture))
    stages.begin([method], stage)
    with torch.no_grad():
        for parameter in stage.model.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter))
    return method, stage


def layers(model: nn.Module) -> list[Any]:
    """Those with experts."""
    return [module for module in model.modules() if hasattr(module, "lora_router")]


def probabilities(layer: Any, token: Tensor) -> Tensor:
    """softmax(W_r x), [E]."""
    logits = torch.stack([row @ token for row in layer.lora_router["default"].weight.detach().double()])
    return logits.exp() / logits.exp().sum()


def mixture(layer: Any, token: Tensor, top_k: int, renormalise: bool) -> Tensor:
    """W x + b + s Σ g_e B_e A_e x of one token, from the formula, [d_out]."""
    weight = layer.base_layer.weight.detach().double()
    out = token @ weight if layer.fan_in_fan_out else weight @ token
    out = out + (layer.base_layer.bias.detach().double() if layer.base_layer.bias is not None else 0)
    p = probabilities(layer, token)
    best = sorted(range(E), key=lambda e: -float(p[e]))[:top_k]
    for e in best:
        a = layer.lora_A["default"].weight.detach().double()[e * R : (e + 1) * R]
        b = layer.lora_B["default"].weight.detach().double()[:, e * R : (e + 1) * R]
        gate = p[e] / sum(p[i] for i in best) if renormalise else p[e]
        out = out + ALPHA / R * gate * (b @ (a @ token))
    return out


@pytest.mark.parametrize(("top_k", "renormalise"), [(2, True), (1, False), (3, False)])
@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama", "t5"])
def test_a_layer_is_the_mixture_of_its_experts(architecture: str, top_k: int, renormalise: bool) -> None:
    _, stage = attached(architecture, top_k=top_k, renormalise=renormalise)
    layer = layers(stage.model)[-1]
    x = torch.randn(2, 3, layer.in_features)
    expected = torch.stack([torch.stack([mixture(layer, t, top_k, renormalise) for t in row]) for row in x.double()])
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-4, atol=1e-4)


def test_an_expert_that_no_token_chooses_gets_no_gradient() -> None:
    _, stage = attached(top_k=1, renormalise=False, balance=0)
    layer = layers(stage.model)[0]
    with torch.no_grad():
        layer.lora_router["default"].weight[1:].zero_()
        layer.lora_router["default"].weight[0] = 0.1
    layer(torch.rand(2, 5, 32)).square().sum().backward()
    for matrix, dim in (("lora_A", 0), ("lora_B", 1)):
        used, idle = getattr(layer, matrix)["default"].weight.grad.split([R, (E - 1) * R], dim)
        assert used.any()
        assert not idle.any()
    assert layer.lora_router["default"].weight.grad.any()


def test_balance_is_of_the_batchs_own_rows() -> None:
    method, stage = attached(top_k=2, balance=0.5)
    protection = Protection([method], stage)
    seen: dict[Any, Tensor] = {}
    for layer in layers(stage.model):
        layer.register_forward_hook(lambda layer, inputs, _: seen.__setitem__(layer, inputs[0].detach().double()))
    batch = next(stage.batches(3))
    _, parts = protection.loss(stage.model.train(), batch)
    terms = []
    for layer, x in seen.items():
        p = torch.stack([probabilities(layer, token) for token in x.flatten(0, 1)])
        counts = torch.zeros(E, dtype=torch.float64)
        for row in p:
            for e in sorted(range(E), key=lambda e, row=row: -float(row[e]))[:2]:
                counts[e] += 1
        terms.append(E * sum(counts[e] / counts.sum() * p[:, e].mean() for e in range(E)))
    expected = 0.5 * torch.stack(terms).mean()
    torch.testing.assert_close(parts["moe_lora/balance"].double(), expected, rtol=1e-4, atol=1e-6)

    class Views(MoELoRA):
        """Has rows of its own behind the batch's."""

        def views(self, stage: Any, batch: Any) -> Any:
            from everlearn.methods.base import View

            return [View({"input_ids": batch["input_ids"].flip(0)[:1]})]

    method.views = Views.views.__get__(method)
    _, again = protection.loss(stage.model, batch)
    torch.testing.assert_close(again["moe_lora/balance"], parts["moe_lora/balance"])
    assert all(router._gates is None and router._seen is None for router in routers(stage.model))


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama", "t5"])
def test_the_base_stays_the_base_and_texts_are_read_with_the_experts(architecture: str) -> None:
    base, method = tiny.model(architecture, dropout=0.1), MoELoRA(experts=E, r=R)
    start, model = stages.weights(base), base
    for index in (1, 2):
        stage = stages.stage(model, index, tiny.objective_of(architecture))
        if index == 2:
            stages.begin([method], stage)
            stages.end([method], stage)
        stages.learn([method], stage)
        model = stage.model
    assert all(torch.equal(parameter, start[name]) for name, parameter in model.named_parameters())
    assert method.memory().facts["domains"] == ["d1", "d2", "d2"]

    batch = next(stage.batches(4))
    reading = Reading(None, ("d1", "d2"), stage.objective, lambda: model, stage.batches)
    tested = method.test_model(copy.deepcopy(model), reading).eval()
    assert type(tested) is type(model)
    assert all(parameter.requires_grad for parameter in tested.parameters()), "an end task trains all of it"
    again = stages.stage(copy.deepcopy(model), 3, tiny.objective_of(architecture))
    stages.begin([method], again)
    with torch.no_grad():
        losses = [stage.objective.per_sample_loss(m.eval(), batch) for m in (model, tested, again.model)]
    assert not torch.allclose(losses[0], losses[1])
    assert torch.equal(losses[1], losses[2])


def test_a_classifier_is_read_with_the_experts() -> None:
    method, stage = MoELoRA(experts=E, r=R), stages.stage(tiny.model(), 1)
    stages.learn([method], stage)
    classifier = AutoModelForSequenceClassification.from_config(stage.model.config)
    reading = Reading(None, ("d1",), stage.objective, lambda: stage.model, stage.batches)
    tested = method.test_model(classifier, reading)
    values = {name: value for name, value in tested.named_parameters() if ".lora_" in name}
    assert len(values) == 3 * 4
    kept = {name.removeprefix("base_model.model."): value for name, value in method.memory().tensors.items()}
    assert all(torch.equal(value, kept[name.replace(".default", "")]) for name, value in values.items())


def test_gradient_checkpointing_changes_nothing() -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        method, stage = attached("llama", balance=1.0)
        if checkpointing:
            stage.model.activation_checkpointing_enable({"use_reentrant": False})
            stage.model.enable_input_require_grads()
        loss, _ = Protection([method], stage).loss(stage.model.train(), next(stage.batches(4)))
        loss.backward()
        gradients.append({n: p.grad for n, p in stage.model.named_parameters() if p.requires_grad})
    assert any("lora_router" in name for name in gradients[0])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)


def test_size_and_refusals() -> None:
    model = tiny.model()
    _, stage = attached()
    added = sum(p.numel() for p in stage.model.parameters() if p.requires_grad)
    width = len([path for path in anatomy(model).linears if path.endswith(("query", "value"))])
    assert added == width * (E * R * (32 + 32) + E * 32)
    assert added == MoELoRA(experts=E, r=R).cost(model).parameters
    for options, sentence in (
        ({"experts": 2, "top_k": 3}, r"'top_k': 3 of 2 `experts` cannot be chosen"),
        ({"top_k": 1}, r"'top_k'.*no router learns.*`renormalise: false`"),
    ):
        with pytest.raises(MethodError, match=rf"'moe_lora', option {sentence}\.$"):
            MoELoRA(**options)
    assert MoELoRA(experts=1, top_k=1).config.renormalise
