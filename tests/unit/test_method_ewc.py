"""EWC against the penalty written out in float64, with Fisher information from a loop over samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.protection import Protection
from everlearn.methods.penalties.ewc import EWC

STRENGTH = 300.0


def _fisher(model, stage, samples: int, source=None) -> dict[str, Tensor]:
    """Mean of squared per-sample gradients, sample by sample, in float64 and without dropout."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    total = {name: torch.zeros_like(parameter) for name, parameter in double.named_parameters()}
    count = 0
    for batch in stage.batches(samples, source):
        for row in range(len(batch["labels"])):
            double.zero_grad()
            one = {name: value[row : row + 1] for name, value in batch.items()}
            stage.objective.per_sample_loss(double, one).sum().backward()
            count += 1
            for name, parameter in double.named_parameters():
                if parameter.grad is not None:
                    total[name] += parameter.grad**2
    return {name: value / count for name, value in total.items()}


@pytest.mark.parametrize("accumulate", ["sum", "mean"])
def test_penalty_and_its_gradient_are_the_equation(accumulate: str) -> None:
    method = EWC(strength=STRENGTH, samples=6, accumulate=accumulate)
    model = tiny.model(dropout=0.1)
    reference: dict[str, Tensor] = {}
    for index in (1, 2):
        stage = stages.stage(model, index, steps=2)
        parts = stages.learn([method], stage)
        assert ("ewc/penalty" in parts[0]) == (index == 2), "nothing is protected in the first domain"
        new = _fisher(model, stage, 6)
        for name, value in new.items():
            old = reference.get(name, torch.zeros_like(value))
            reference[name] = old + value if accumulate == "sum" or index == 1 else (old + value) / 2
    anchor = {name: p.detach().double().clone() for name, p in model.named_parameters()}

    third = stages.stage(model, 3)
    stages.begin([method], third)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    protection = Protection([method], third)
    _, extra = protection.forward(model.eval(), next(third.batches(4)))
    penalty = extra["ewc/penalty"]
    expected = sum(
        STRENGTH / 2 * (reference[name] * (p.detach().double() - anchor[name]) ** 2).sum()
        for name, p in model.named_parameters()
    )
    torch.testing.assert_close(penalty.double(), expected, rtol=1e-4, atol=0)
    penalty.backward()
    for name, parameter in model.named_parameters():
        gradient = STRENGTH * reference[name] * (parameter.detach().double() - anchor[name])
        torch.testing.assert_close(parameter.grad.double(), gradient, rtol=2e-3, atol=1e-6)


def test_penalty_is_the_same_whatever_the_batch() -> None:
    method, model = EWC(samples=4), tiny.model()
    stages.learn([method], stages.stage(model, 1, steps=1))
    second = stages.stage(model, 2)
    stages.begin([method], second)
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(0.01)
    batch = next(second.batches(4))
    values = [
        Protection([method], second).forward(model, {n: v[:rows] for n, v in batch.items()})[1]["ewc/penalty"]
        for rows in (1, 2, 4)
    ]
    assert values[0] > 0
    assert values[0] == values[1] == values[2]


def test_tied_weights_are_penalised_once() -> None:
    method, model = EWC(samples=2), tiny.model()
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    stages.learn([method], stages.stage(model, 1, steps=1))
    names = [name.removeprefix("fisher/") for name in method.memory().tensors if name.startswith("fisher/")]
    assert sum("decoder.weight" in name or "word_embeddings" in name for name in names) == 1


def test_a_strong_penalty_keeps_the_model_near_its_anchor() -> None:
    moved = []
    for strength in (0.0, 1e6):
        model = tiny.model()
        method = EWC(strength=strength, samples=8)
        stages.learn([method], stages.stage(model, 1, steps=3))
        start = stages.weights(model)
        stages.learn([method], stages.stage(model, 2, steps=10), weight_decay=0)
        moved.append(sum(float((p.detach() - start[name]).square().sum()) for name, p in model.named_parameters()))
    assert moved[1] < 0.5 * moved[0]


def test_memory_is_the_whole_state_and_belongs_to_its_model() -> None:
    method, model = EWC(samples=4), tiny.model()
    stages.learn([method], stages.stage(model, 1, steps=2))
    copy = EWC(samples=4)
    copy.load_memory(method.memory())
    twin = tiny.model()
    twin.load_state_dict(model.state_dict())
    stages.learn([method], stages.stage(model, 2))
    stages.learn([copy], stages.stage(twin, 2))
    assert all(torch.equal(p, twin.get_parameter(name)) for name, p in model.named_parameters())
    assert copy.memory().facts == {"domains": ["d1", "d2"]}
    with pytest.raises(MethodError, match="another model"):
        stages.learn([copy], stages.stage(tiny.model(intermediate_size=48), 3))


def test_the_base_can_be_protected_and_is_measured_once() -> None:
    method, model = EWC(samples=4, protect_base=True), tiny.model()
    stage = stages.stage(model, 1, general=True)
    stages.begin([method], stage)
    assert method.memory().facts == {"domains": ["base"]}
    measured = method.memory().tensors
    for name, value in _fisher(model, stage, 4, stage.general).items():
        torch.testing.assert_close(measured[f"fisher/{name}"].double(), value, rtol=1e-3, atol=1e-9)
    stages.begin([method], stage)
    assert method.memory().facts == {"domains": ["base"]}
    assert all(torch.equal(method.memory().tensors[name], value) for name, value in measured.items())
    assert "ewc/penalty" in stages.learn([method], stage)[0]


def test_strength_zero_does_nothing() -> None:
    method, model = EWC(strength=0), tiny.model()
    assert stages.learn([method], stages.stage(model, 1))[0].keys() == {"loss"}
    assert not method.memory()
    assert method.cost(model).memory_bytes == 0


def _batch_fisher(model, stage, samples: int, penalty=None) -> dict[str, Tensor]:
    """Σ_b |b| (∇ mean loss of b)² / number of batches, in float64 and without dropout."""
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    total = {name: torch.zeros_like(parameter) for name, parameter in double.named_parameters()}
    batches = list(stage.batches(samples))
    for batch in batches:
        double.zero_grad()
        stage.objective.forward(double, batch).loss.backward()
        for name, parameter in double.named_parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if penalty is not None:
                importance, anchor = penalty
                gradient = gradient + STRENGTH * importance[name] * (parameter.detach() - anchor[name])
            total[name] += len(batch["labels"]) * gradient**2
    return {name: value / len(batches) for name, value in total.items()}


def test_the_released_form_squares_batch_means_and_sees_its_own_penalty() -> None:
    method = build({"name": "ewc_released", "strength": STRENGTH, "samples": 6})
    assert isinstance(method, EWC)
    assert method.config.dropout
    model = tiny.model()  # no dropout, so that there is one result to compare with
    reference: dict[str, Tensor] = {}
    anchor: dict[str, Tensor] = {}
    for index in (1, 2, 3):
        stage = stages.stage(model, index, steps=2)
        stages.learn([method], stage, lr=1e-3)
        new = _batch_fisher(model, stage, 6, (reference, anchor) if reference else None)
        for name, value in new.items():
            reference[name] = (value + (index - 1) * reference[name]) / index if index > 1 else value
        anchor = {name: p.detach().double().clone() for name, p in model.named_parameters()}
        largest = max(float(value.max()) for value in reference.values())
        for name, value in reference.items():
            measured = method.memory().tensors[f"fisher/{name}"].double()
            torch.testing.assert_close(measured, value, rtol=2e-3, atol=1e-9 * largest)


def test_batch_means_are_far_below_per_sample_squares() -> None:
    """|b| (∇ mean)² is about the mean of the squares only where the samples' gradients are independent."""
    model = tiny.model()
    totals = {}
    for gradients in ("sample", "batch"):
        method = EWC(gradients=gradients, samples=8)
        stages.end([method], stages.stage(model, 1, batch_size=8))
        totals[gradients] = {n: v for n, v in method.memory().tensors.items() if n.startswith("fisher/")}
    assert any(not torch.allclose(v, totals["batch"][n], rtol=0.1) for n, v in totals["sample"].items())
    one = EWC(gradients="batch", samples=8)
    stages.end([one], stages.stage(model, 1, batch_size=1))
    for name, value in totals["sample"].items():
        torch.testing.assert_close(one.memory().tensors[name], value, rtol=1e-4, atol=1e-12)


def test_dropout_is_on_only_where_it_was_asked_for_and_the_mode_is_kept() -> None:
    found = {}
    for dropout in (False, True):
        model = tiny.model(dropout=0.3).train()
        frozen = model.get_input_embeddings().eval()
        method = EWC(samples=4, dropout=dropout)
        stages.end([method], stages.stage(model, 1))
        assert model.training
        assert not frozen.training
        found[dropout] = method.memory().tensors
    assert any(not torch.equal(value, found[True][name]) for name, value in found[False].items())
