"""O-LoRA: the penalties against float64 loops over pairs of rows, and IncLoRA in everything else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.adapters.o_lora import OLoRA, norms
from everlearn.methods.engine.protection import Protection


def in_domain(index: int, architecture: str = "roberta", **options: Any) -> tuple[OLoRA, Any, dict[str, Tensor]]:
    """The method while it learns a domain, the stage, and the losses of its first step; every B is away from 0."""
    method, model = OLoRA(r=2, lora_dropout=0.0, **options), tiny.model(architecture)
    for earlier in range(1, index):
        stage = stages.stage(model, earlier, tiny.objective_of(architecture), steps=2)
        stages.learn([method], stage)
        model = stage.model
    stage = stages.stage(model, index, tiny.objective_of(architecture))
    protection = Protection([method], stage)
    protection.begin()
    with torch.no_grad():
        for parameter in stage.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    loss, parts = protection.loss(stage.model.train(), next(stage.batches(4)))
    loss.backward()
    return method, stage, parts


def matrices(stage: Any, kind: str) -> dict[str, Tensor]:
    """A or B of this domain in float64, by PEFT's name of it."""
    found = {name: p for name, p in stage.model.named_parameters() if f"lora_{kind}.default" in name}
    return {name.replace(".default", ""): p.detach().double().requires_grad_() for name, p in found.items()}


def pairwise(method: OLoRA, new: dict[str, Tensor], power: int) -> Tensor:
    """Σ over layers, earlier domains and pairs of rows, one at a time."""
    total = torch.zeros((), dtype=torch.float64)
    for name, a in new.items():
        for domain in method.memory().facts["domains"]:
            earlier = method.memory().tensors[f"{domain}/{name}"].double()
            for i, j in itertools.product(range(len(earlier)), range(len(a))):
                total = total + (earlier[i] @ a[j]).abs() ** power
    return total


@pytest.mark.parametrize("form", ["absolute", "squares"])
@pytest.mark.parametrize(("architecture", "targets"), [("roberta", "all-linear"), ("gpt2", "attention"), ("t5", ["q"])])
def test_one_product_of_all_layers_is_the_sum_over_pairs(architecture: str, targets: Any, form: Any) -> None:
    """Layers of several widths, three earlier domains; value and gradient."""
    method, stage, parts = in_domain(4, architecture, target_modules=targets, orthogonality=form, lambda_1=0.7)
    new = matrices(stage, "A")
    expected = 0.7 * pairwise(method, new, 1 if form == "absolute" else 2)
    assert len({tuple(a.shape) for a in new.values()}) == (2 if targets == "all-linear" else 1)
    torch.testing.assert_close(parts["o_lora/orthogonality"].double(), expected.detach(), rtol=1e-5, atol=1e-6)
    # The gradient of the penalty is what the loss without it lacks.
    expected.backward()
    plain, own = in_domain_without(stage, method), {n: p.grad for n, p in stage.model.named_parameters()}
    for name, a in new.items():
        key = name.replace("lora_A", "lora_A.default")
        torch.testing.assert_close(own[key].double() - plain[key].double(), a.grad, rtol=1e-3, atol=1e-4)


def in_domain_without(stage: Any, method: OLoRA) -> dict[str, Tensor]:
    """Gradients of the same step without any penalty."""
    kept = {name: p.grad for name, p in stage.model.named_parameters()}
    stage.model.zero_grad()
    outputs = stage.objective.forward(stage.model.train(), next(stage.batches(4)))
    outputs.loss.backward()
    plain = {name: p.grad for name, p in stage.model.named_parameters()}
    for name, parameter in stage.model.named_parameters():
        parameter.grad = kept[name]
    return plain


def test_norms_are_of_both_matrices_and_not_squared() -> None:
    _, stage, parts = in_domain(1, lambda_2=0.3)
    expected = sum(m.square().sum().sqrt() for kind in "AB" for m in matrices(stage, kind).values())
    torch.testing.assert_close(parts["o_lora/norms"].double(), 0.3 * expected.detach(), rtol=1e-5, atol=1e-6)
    assert "o_lora/orthogonality" not in parts, "the first domain has no earlier one"
    zero = torch.nn.Parameter(torch.zeros(3, 2))
    norms([zero]).sum().backward()
    assert torch.equal(zero.grad, torch.zeros(3, 2)), "B begins at 0"


def test_without_penalties_it_is_inc_lora_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OLoRA, "name", "inc_lora")  # A is drawn under a seed of the name
    results = []
    for method in (IncLoRA(), OLoRA(lambda_1=0)):
        model = tiny.model(dropout=0.1)
        for index in (1, 2):
            stage = stages.stage(model, index)
            stages.learn([method], stage)
            model = stage.model
        results.append(stages.weights(model) | method.memory().tensors)
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_the_penalty_makes_adapters_orthogonal_and_leaves_earlier_ones_alone() -> None:
    found = []
    for strength in (0.0, 5.0):
        method, model = OLoRA(lambda_1=strength), tiny.model()
        for index in (1, 2):
            before = dict(method.memory().tensors)
            stage = stages.stage(model, index, steps=10)
            stages.learn([method], stage)
            model = stage.model
            assert all(torch.equal(method.memory().tensors[name], value) for name, value in before.items())
        tensors = method.memory().tensors
        new = {name.removeprefix("d2/"): a.double() for name, a in tensors.items() if name.startswith("d2/")}
        method._adapters = {"d1": method._adapters["d1"]}
        found.append(float(pairwise(method, {n: a for n, a in new.items() if "lora_A" in n}, 1)))
    assert found[1] < 0.7 * found[0]


def test_strengths_by_position() -> None:
    for index, expected in ((1, 0.0), (2, 0.25), (3, 4.0), (4, 4.0)):
        method, stage, parts = in_domain(index, lambda_1=[0, 0.25, 4.0])
        whole = expected * pairwise(method, matrices(stage, "A"), 1).detach() if index > 1 else torch.zeros(())
        assert float(parts.get("o_lora/orthogonality", torch.zeros(()))) == pytest.approx(float(whole), rel=1e-4)
    long = build("o_lora_long_sequence").config
    assert [len(long.lambda_1), len(long.lambda_2)] == [15, 15]
    assert (long.lambda_1[0], long.lambda_1[1], long.lambda_1[8], long.lambda_1[9], long.lambda_1[14]) == (
        0,
        0.5,
        0.5,
        5,
        5,
    )
    assert [place for place, value in enumerate(long.lambda_2, 1) if value == 0.3] == [7, 15]
    assert [place for place, value in enumerate(long.lambda_2, 1) if value == 0.1] == [5, 6, 9, 12, 14]
    for wrong in (-1, [], [0.5, -1], "much"):
        with pytest.raises(MethodError, match="lambda_1"):
            OLoRA(lambda_1=wrong)
