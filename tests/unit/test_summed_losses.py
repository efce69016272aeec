"""Losses whose gradients are computed in the forward pass, against one projection to the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn.methods.engine.protection import Protection
from everlearn.model import vocabulary_head
from everlearn.model.objectives import IGNORE, Objective, Outputs
from everlearn.model.vocabulary_head import observe_logits, output_head

WHOLE = vocabulary_head.LOGITS_PER_CHUNK
SMALL = 14 * tiny.VOCABULARY
"""Chunks of seven labels."""


def mean(outputs: Outputs) -> Tensor:
    return outputs.losses.sum() / outputs.items


def rows_apart(outputs: Outputs) -> Tensor:
    """Each row with a factor of its own."""
    return (outputs.losses.sum(1) * torch.arange(1.0, 1 + len(outputs.losses))).sum()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of logits rows of each call of the cross-entropy."""
    seen: list[int] = []
    original = vocabulary_head.cross_entropy

    def counted(logits: Tensor, labels: Tensor, ignore: int) -> Tensor:
        seen.append(len(logits))
        return original(logits, labels, ignore)

    monkeypatch.setattr(vocabulary_head, "cross_entropy", counted)
    return seen


def case(architecture: str) -> tuple[nn.Module, Objective, dict[str, Tensor]]:
    model = tiny.model(architecture)
    if architecture == "bart":
        model.final_logits_bias.copy_(torch.linspace(-1, 1, tiny.VOCABULARY)[None])
    stage = stages.stage(model, 1, tiny.objective_of(architecture))
    return model, stage.objective, next(stage.batches(4))


def gradients(
    model: nn.Module, objective: Objective, batch: dict[str, Tensor], loss: Callable[[Outputs], Tensor], summed: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    outputs = objective.forward(model, batch, summed=summed)
    loss(outputs).backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    return outputs.losses.detach(), found


def assert_same(found: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(found[0], expected[0])
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
@pytest.mark.parametrize("loss", [mean, rows_apart])
def test_gradients_are_those_of_one_projection(
    architecture: str, loss: Callable[[Outputs], Tensor], monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    """With biases, caps, scales and tied weights; logits are computed again only where labels have other factors."""
    model, objective, batch = case(architecture)
    batch["labels"][0, ::3] = batch["labels"][2] = IGNORE
    expected = gradients(model, objective, batch, loss, summed=False)
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    calls.clear()
    assert_same(gradients(model, objective, batch, loss, summed=True), expected)
    count = batch["labels"].numel()
    once = [7] * (count // 7) + [count % 7] * (count % 7 > 0)
    assert calls == (once if loss is mean else once + once)


@pytest.mark.parametrize("trained", ["head", "body", "nothing"])
@pytest.mark.parametrize("loss", [mean, rows_apart])
def test_only_what_is_trained_has_a_gradient(
    trained: str, loss: Callable[[Outputs], Tensor], monkeypatch: pytest.MonkeyPatch, calls: list[int]
) -> None:
    """Where the head is frozen, as beside LoRA, no factors make the logits be computed again."""
    model = tiny.model("llama", tie_word_embeddings=False)
    stage = stages.stage(model, 1, "causal")
    batch = next(stage.batches(4))
    for name, weight in model.named_parameters():
        weight.requires_grad_(trained != "nothing" and name.startswith("lm_head") == (trained == "head"))
    if trained == "nothing":
        monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
        assert not stage.objective.forward(model, batch, summed=True).losses.requires_grad
        return
    expected = gradients(model, stage.objective, batch, loss, summed=False)
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    calls.clear()
    assert_same(gradients(model, stage.objective, batch, loss, summed=True), expected)
    assert sum(calls) == batch["labels"].numel() * (2 if trained == "head" and loss is rows_apart else 1)


def test_a_batch_without_labels_has_gradients_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    model, objective, batch = case("gpt2")
    batch["labels"][:] = IGNORE
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    losses, found = gradients(model, objective, batch, lambda outputs: outputs.loss, summed=True)
    assert not losses.any()
    assert found
    assert not any(value.any() for value in found.values())


@pytest.mark.parametrize("loss", [mean, rows_apart])
@pytest.mark.parametrize("half", ["autocast", "weights"])
def test_bfloat16_is_as_exact_as_one_projection(
    half: str, loss: Callable[[Outputs], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is further from the float32 gradients than the other, by more than a fifth."""
    model, objective, batch = case("llama")
    exact = gradients(model, objective, batch, loss, summed=False)[1]
    if half == "weights":
        model.bfloat16()
    found = []
    for chunk, summed in ((WHOLE, False), (SMALL, True)):
        monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", chunk)
        with torch.autocast("cpu", torch.bfloat16, enabled=half == "autocast"):
            found.append(gradients(model, objective, batch, loss, summed)[1])
    assert {name: value.dtype for name, value in found[1].items()} == {n: v.dtype for n, v in found[0].items()}
    for name in ("lm_head.weight", "model.layers.0.self_attn.q_proj.weight"):
        errors = [float((values[name].float() - exact[name]).norm() / exact[name].norm()) for values in found]
        assert errors[1] <= 1.2 * errors[0] + 1e-3
        assert errors[1] < 0.05


@pytest.mark.parametrize("chunk", [WHOLE, SMALL])
def test_features_of_another_type_than_the_head_are_refused_by_torch(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the model's own forward pass, however many labels there are."""
    model, objective, batch = case("llama")
    output_head(model).bfloat16()
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", chunk)
    with pytest.raises(RuntimeError, match="dtype"):
        gradients(model, objective, batch, mean, summed=True)
    with torch.autocast("cpu", torch.bfloat16):
        gradients(model, objective, batch, mean, summed=True)


def test_hooks_of_a_weight_see_its_complete_gradient_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squared chunk by chunk it would be another gradient."""
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    model, objective, batch = case("gpt2")
    plain = gradients(model, objective, batch, mean, summed=True)[1]["transformer.wte.weight"]
    seen: list[Tensor] = []
    model.lm_head.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    gradients(model, objective, batch, mean, summed=True)
    assert len(seen) == 1
    torch.testing.assert_close(seen[0], plain)


def test_a_second_backward_pass_computes_the_logits_again(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    model, objective, batch = case("gpt2")
    once = gradients(model, objective, batch, mean, summed=True)[1]
    calls.clear()
    outputs = objective.forward(model, batch, summed=True)
    model.zero_grad()
    mean(outputs).backward(retain_graph=True)
    mean(outputs).backward()
    for name, value in once.items():
        torch.testing.assert_close(model.get_parameter(name).grad, 2 * value, rtol=1e-4, atol=1e-5)
    assert sum(calls) == 2 * batch["labels"].numel()


def test_an_infinite_factor_is_no_gradient_without_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum divided by the number of labels, which is 0."""
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    model, objective, batch = case("gpt2")
    batch["labels"][:] = IGNORE
    assert not any(value.any() for value in gradients(model, objective, batch, mean, summed=True)[1].values())


def test_observers_see_each_label_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where logits are computed again."""
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    model, objective, batch = case("gpt2")
    seen: list[Tensor] = []
    handle = observe_logits(output_head(model), lambda logits, labels: seen.append(labels.clone()))
    rows_apart(objective.forward(model, batch, summed=True)).backward()
    handle.remove()
    assert torch.equal(torch.cat(seen), batch["labels"].flatten())


def test_training_computes_the_logits_once(monkeypatch: pytest.MonkeyPatch, calls: list[int]) -> None:
    """The engine says that it sums the losses."""
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", SMALL)
    model, _, batch = case("gpt2")
    outputs, _ = Protection([], stages.stage(model, 1, "causal")).forward(model, batch)
    outputs.losses.sum().backward()
    assert sum(calls) == batch["labels"].numel()
