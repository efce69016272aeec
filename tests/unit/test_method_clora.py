"""CLoRA: the penalty against float64 loops over rows and directions, and what the directions are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.adapters.clora import CLoRA, orthonormal
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.engine.protection import Protection, check_methods


def in_domain(index: int = 1, architecture: str = "roberta", seed: int = 0, **options: Any) -> tuple[CLoRA, Any, Any]:
    """The method at the first step of a domain, every B away from 0."""
    method = CLoRA(r=2, lora_dropout=0.0, **options)
    stage = stages.stage(tiny.model(architecture), index, tiny.objective_of(architecture), seed=seed)
    protection = Protection([method], stage)
    protection.begin()
    with torch.no_grad():
        for parameter in stage.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return method, stage, protection


@pytest.mark.parametrize(
    ("architecture", "targets", "k"), [("roberta", "all-linear", 5), ("gpt2", "attention", None), ("t5", ["q"], 31)]
)
def test_the_penalty_is_the_sum_over_directions(architecture: str, targets: Any, k: int | None) -> None:
    """Value and gradient; the released code has half of it."""
    method, stage, protection = in_domain(architecture=architecture, target_modules=targets, k=k, strength=0.7)
    batch = next(stage.batches(4))
    loss, parts = protection.loss(stage.model.eval(), batch)
    with_penalty = dict(zip(*gradients(stage, loss), strict=True))
    outputs = stage.objective.forward(stage.model, batch)
    without = dict(zip(*gradients(stage, outputs.loss), strict=True))
    names = {id(parameter): name for name, parameter in stage.model.named_parameters()}
    total = 0.0
    assert len(method._pairs) == 2 * len(method._targets(tiny.model(architecture)))
    for parameter, _, directions in method._pairs:
        name = names[id(parameter)]
        p = directions.double()
        assert directions.shape[1] == (k or len(directions) // 2)
        rows = parameter.detach().double() if "lora_A" in name else parameter.detach().double().T
        slope = torch.zeros_like(rows)
        for i, row in enumerate(rows):
            for direction in p.T:
                total += 0.7 * float(row @ direction) ** 2
                slope[i] += 0.7 * 2 * float(row @ direction) * direction
        slope = slope if "lora_A" in name else slope.T
        own = (with_penalty[name] - without[name]).double()
        torch.testing.assert_close(own, slope, rtol=1e-3, atol=1e-4)
    assert float(parts["clora/subspace"]) == pytest.approx(total, rel=1e-4)


def gradients(stage: Any, loss: Tensor) -> tuple[list[str], tuple[Tensor, ...]]:
    """Of every trained parameter."""
    trained = {name: p for name, p in stage.model.named_parameters() if p.requires_grad}
    return list(trained), torch.autograd.grad(loss, list(trained.values()))


def test_directions_are_orthonormal_and_the_same_in_every_domain() -> None:
    """So the sum of all updates leaves them alone; layers, sides and seeds have others."""
    found = []
    for index, seed in ((1, 0), (2, 0), (1, 5)):
        method, _, protection = in_domain(index, seed=seed)
        protection.start()
        found.append([p for _, _, p in method._pairs])
    for one, later, other in zip(*found, strict=True):
        torch.testing.assert_close(one.T @ one, torch.eye(one.shape[1]), rtol=0, atol=1e-5)
        assert torch.equal(one, later)
        assert not torch.allclose(one, other)
    assert not torch.allclose(found[0][0], found[0][1])
    sums = torch.stack([orthonormal(4, 2, seed) for seed in range(400)]).mean(0)
    assert sums.abs().max() < 0.1, "drawn evenly: no sign is preferred"


def test_what_is_learnt_leaves_the_directions_alone() -> None:
    """Of an update of IncLoRA half a layer's directions see half; of CLoRA's next to nothing."""
    shares = {}
    for method in (IncLoRA(r=2, lora_dropout=0.0), CLoRA(r=2, lora_dropout=0.0, strength=30.0)):
        seen: list[tuple[Tensor, Tensor]] = []
        reference, _, protection = in_domain()
        protection.start()
        pairs = [p for _, _, p in reference._pairs]

        def look(protection: Protection, _: Any, seen: list = seen, pairs: list = pairs) -> None:
            adapters = {n: q.detach().clone() for n, q in protection.stage.model.named_parameters() if q.requires_grad}
            ordered = [n for n in adapters if "lora_A" in n] + [n for n in adapters if "lora_B" in n]
            both = [(adapters[n] if "lora_A" in n else adapters[n].T, p) for n, p in zip(ordered, pairs, strict=True)]
            seen.append(
                (sum((m @ p).square().sum() for m, p in both), sum(m.square().sum() for m, _ in both))  # type: ignore
            )

        stages.learn([method], stages.stage(tiny.model(), 1, steps=30), each=look)
        shares[method.name] = float(seen[-1][0] / seen[-1][1])
    assert shares["inc_lora"] > 0.3
    assert shares["clora"] < 0.1 * shares["inc_lora"]


def test_without_strength_it_is_inc_lora() -> None:
    results = []
    for method in (IncLoRA(), CLoRA(strength=0)):
        method.name = "inc_lora"  # what seeds the start of A
        stage = stages.stage(tiny.model(), 1)
        parts = stages.learn([method], stage)
        assert not any("subspace" in name for each in parts for name in each)
        results.append(stages.weights(stage.model))
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_directions_that_leave_nothing_are_refused() -> None:
    method = CLoRA(k=32)
    with pytest.raises(MethodError, match=r"'clora', option 'k': 32 directions.*Set it below 32"):
        check_methods([method], stages.setting(tiny.model(), [method]))
