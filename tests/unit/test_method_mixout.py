"""Mixout against its equation: expectation, variance, gradient, and what is mixed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.methods import build
from everlearn.methods.base import Stage
from everlearn.methods.engine.protection import Protection
from everlearn.methods.tricks.mixout import Mixout, linear_weights
from everlearn.model.modes import dropout_rates

LAYER = "roberta.encoder.layer.0.attention.self.query.weight"


def begun(name: str = "mixout", architecture: str = "roberta", **options: Any) -> tuple[Mixout, Stage]:
    """A method in the second domain, whose model has moved on from the base model's."""
    method: Any = build({"name": name} | options)
    stage = stages.stage(tiny.model(architecture, dropout=0.1).double(), 2, tiny.objective_of(architecture))
    method.begin_domain(stage)
    return method, stage


def draws(mix: Any, weight: Tensor, count: int) -> Tensor:
    torch.manual_seed(0)
    return torch.stack([mix(weight) for _ in range(count)])


@pytest.mark.parametrize("mask", ["inputs", "entries"])
@pytest.mark.parametrize("p", [0.5, 0.7, 0.9])
def test_expectation_and_variance(mask: str, p: float) -> None:
    method, stage = begun(probability=p, mask=mask)
    u = method._anchors[LAYER]
    w = u + torch.linspace(-1, 2, u.numel(), dtype=u.dtype).view_as(u)
    found = draws(method.transforms(stage)[LAYER], w, 4000)
    error = (p / (1 - p)) ** 0.5 * (w - u).abs() / 4000**0.5
    assert ((found.mean(0) - w).abs() <= 6 * error + 1e-12).all()
    torch.testing.assert_close(found.var(0), p / (1 - p) * (w - u) ** 2, rtol=0.35, atol=1e-6)
    # ((1 − M) w + M u − p u) / (1 − p) has two values.
    assert torch.minimum((found - u).abs(), (found - (w - p * u) / (1 - p)).abs()).max() < 1e-9
    torch.testing.assert_close(draws(method.transforms(stage)[LAYER], u, 3), u.expand(3, -1, -1), rtol=0, atol=0)


@pytest.mark.parametrize(("architecture", "name", "dim"), [("roberta", LAYER, 1), ("gpt2", "h.0.mlp.c_fc.weight", 0)])
def test_an_input_unit_is_mixed_with_all_that_leaves_it(architecture: str, name: str, dim: int) -> None:
    name = name if architecture == "roberta" else f"transformer.{name}"
    method, stage = begun(architecture=architecture)
    u = method._anchors[name]
    torch.manual_seed(0)
    mixed = method.transforms(stage)[name](u + 1.0)
    from_anchor = mixed == u
    assert 0 < from_anchor.sum() < from_anchor.numel()
    assert (from_anchor.all(1 - dim) == from_anchor.any(1 - dim)).all()
    method, stage = begun("mixconnect", architecture)
    single = method.transforms(stage)[name](u + 1.0) == u
    assert not (single.all(1 - dim) == single.any(1 - dim)).all()


def test_gradient_is_that_of_finite_differences_and_the_released_one_is_too_small() -> None:
    for name, factor in (("mixout", 1.0), ("mixout_released", 0.1)):
        method, stage = begun(name, probability=0.9)
        mix, u = method.transforms(stage)[LAYER], method._anchors[LAYER]
        w = (u + 0.5).requires_grad_()
        direction = torch.linspace(-1, 1, u.numel(), dtype=u.dtype).view_as(u)

        def value(weight: Tensor, mix: Any = mix) -> Tensor:
            torch.manual_seed(3)
            return mix(weight).sin().sum()

        value(w).backward()
        step = 1e-6
        difference = (value(w.detach() + step * direction) - value(w.detach() - step * direction)) / (2 * step)
        assert abs(difference) > 1e-3
        torch.testing.assert_close((w.grad * direction).sum(), factor * difference, rtol=1e-6, atol=1e-9)
        kept = w.grad != 0
        slope = (mix_once(mix, w.detach()) - u)[kept] / 0.5
        torch.testing.assert_close(slope, torch.full_like(slope, 10.0))


def mix_once(mix: Any, weight: Tensor) -> Tensor:
    torch.manual_seed(3)
    return mix(weight)


def test_in_evaluation_nothing_is_mixed_and_in_training_something_is() -> None:
    method, model = Mixout(anchor="base"), tiny.model()
    stage = stages.stage(model, 2)
    batch = next(stage.batches(4))
    plain = stage.objective.forward(model, batch).losses
    protection = Protection([method], stage)
    protection.begin()
    protection.start()
    assert torch.equal(stage.objective.forward(model, batch).losses, plain)
    assert not torch.allclose(stage.objective.forward(model.train(), batch).losses, plain, atol=1e-4)
    nothing = Mixout(probability=0)
    nothing.begin_domain(stage)
    assert nothing.transforms(stage) == {}


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama", "t5"])
def test_matrices_of_linear_layers_are_mixed(architecture: str) -> None:
    model = tiny.model(architecture)
    found = {name for name, _, _ in linear_weights(model)}
    assert all(model.get_parameter(name).dim() == 2 for name in found)
    left = {name for name, p in model.named_parameters() if p.dim() == 2} - found
    assert all(any(word in name for word in ("embed", "wte", "wpe", "shared", "relative")) for name in left)
    assert ("lm_head.weight" in found) == (architecture == "llama"), "a head of its own, that no embedding shares"


@pytest.mark.parametrize("dropout", [False, True])
def test_it_takes_the_place_of_dropout_for_a_domain(dropout: bool) -> None:
    model = tiny.model("t5", dropout=0.1)
    rates = [(name, rate) for _, name, rate in dropout_rates(model)]
    seen = []
    stages.learn(
        [Mixout(dropout=dropout)],
        stages.stage(model, 1, "text-to-text", steps=1),
        each=lambda *_: seen.append([(name, rate) for _, name, rate in dropout_rates(model)]),
    )
    assert seen == [rates if dropout else []]
    assert [(name, rate) for _, name, rate in dropout_rates(model)] == rates
    assert len(rates) > 5


def test_it_stays_nearer_to_the_base_model() -> None:
    far = []
    for p in (0, 0.9):
        model = tiny.model()
        stages.learn([], stages.stage(model, 1))
        base = stages.weights(model)
        stages.learn([Mixout(probability=p)], stages.stage(model, 2, steps=12), lr=3e-3, weight_decay=0.0)
        moved = [(w.detach() - base[name]).square().sum() for name, w, _ in linear_weights(model)]
        far.append(float(torch.stack(moved).sum()))
    assert far[1] < far[0]
