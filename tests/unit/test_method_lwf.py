"""LwF against the cross-entropy of two softened softmaxes, word by word in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import stages
import tiny
from everlearn.methods.distillation.lwf import LwF
from everlearn.methods.engine.protection import Protection
from everlearn.model.objectives import IGNORE

KINDS = [("roberta", "masked"), ("gpt2", "causal"), ("llama", "text-to-text"), ("t5", "text-to-text")]
TEMPERATURE, WEIGHT = 2.0, 0.7


def _moved(model: nn.Module, scale: float = 0.05) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


def _double(model: nn.Module) -> nn.Module:
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    return double


def _logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """At each label, by the model's own interface, [B, K, V]."""
    names = ("input_ids", "attention_mask", "position_ids", "decoder_input_ids")
    inputs = {key: batch[key] for key in names if key in batch}
    if model.config.model_type != "roberta":
        inputs["use_cache"] = False  # a cache would undo the isolation of packed documents
    logits = model(**inputs).logits
    if "positions" not in batch:
        return logits
    return logits.gather(1, batch["positions"][..., None].expand(-1, -1, logits.shape[-1]))


def _reference(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    rows = []
    for n in range(len(labels)):
        tokens = []
        for k in range(labels.shape[1]):
            if labels[n, k] == IGNORE:
                continue
            old = (teacher[n, k].exp() / teacher[n, k].exp().sum()) ** (1 / TEMPERATURE)
            new = (student[n, k].exp() / student[n, k].exp().sum()) ** (1 / TEMPERATURE)
            tokens.append(-(old / old.sum() * (new / new.sum()).log()).sum())
        rows.append(sum(tokens) / len(tokens))
    return WEIGHT * sum(rows) / len(rows)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_loss_and_gradient_are_the_equation(
    architecture: str, objective: str, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunked:
        monkeypatch.setattr("everlearn.model.head.LOGITS_PER_CHUNK", 5 * tiny.VOCABULARY)
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, objective)
    protection = Protection([LwF(weight=WEIGHT, temperature=TEMPERATURE)], stage)
    protection.begin()
    teacher = _double(model)
    student = _double(_moved(model))
    batch = next(stage.batches(3))
    outputs, extra = protection.forward(model, batch)
    torch.testing.assert_close(outputs.losses, stage.objective.forward(model, batch).losses)
    expected = _reference(_logits(student, batch), _logits(teacher, batch).detach(), batch["labels"])
    torch.testing.assert_close(extra["lwf/answers"].double(), expected, rtol=1e-4, atol=0)
    extra["lwf/answers"].backward()
    expected.backward()
    scale = max(float(p.grad.abs().max()) for p in student.parameters() if p.grad is not None)
    for (name, parameter), reference in zip(model.named_parameters(), student.parameters(), strict=True):
        wanted = torch.zeros_like(reference) if reference.grad is None else reference.grad
        ours = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(
            ours.double(), wanted, rtol=1e-3, atol=1e-5 * scale, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_logits_that_a_model_caps_are_capped_in_both() -> None:
    model = tiny.model("gemma2", final_logit_softcapping=0.05)
    stage = stages.stage(model, 1, "causal")
    protection = Protection([LwF(weight=WEIGHT, temperature=TEMPERATURE)], stage)
    protection.begin()
    teacher, batch = _double(model), next(stage.batches(2))
    student = _double(_moved(model))
    expected = _reference(_logits(student, batch), _logits(teacher, batch), batch["labels"])
    found = protection.forward(model, batch)[1]["lwf/answers"]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


def test_words_without_probability_leave_the_loss_finite_and_right() -> None:
    """In float32 both models give some word a probability of 0, whose logarithm as such is infinite: one word that the
    other model expects, and one that neither does."""
    model = tiny.model()
    bias, shift = model.lm_head.bias, torch.zeros(tiny.VOCABULARY)
    shift[[7, 8]] = -400
    with torch.no_grad():
        bias.add_(shift)
    stage = stages.stage(model)
    protection = Protection([LwF(weight=WEIGHT, temperature=TEMPERATURE)], stage)
    protection.begin()
    teacher, batch = _double(model), next(stage.batches(3))
    with torch.no_grad():
        bias.sub_(shift).add_(shift.roll(1))
    student = _double(model)
    logits = _logits(student, batch)
    assert ((_logits(model, batch) / TEMPERATURE).softmax(-1) == 0).any()
    expected = _reference(logits, _logits(teacher, batch).detach(), batch["labels"])
    found = protection.forward(model, batch)[1]["lwf/answers"]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
    found.backward()
    expected.backward()
    torch.testing.assert_close(bias.grad.double(), student.lm_head.bias.grad, rtol=1e-4, atol=1e-8)


def test_it_does_not_shrink_with_the_vocabulary() -> None:
    """A mean over words in the place of their sum (`reduction="mean"`) would divide by their number."""
    model = tiny.model("gpt2")
    stage = stages.stage(model, 1, "causal")
    protection = Protection([LwF()], stage)
    protection.begin()
    value = protection.forward(model, next(stage.batches(2)))[1]["lwf/answers"]
    assert 0.5 * torch.log(torch.tensor(tiny.VOCABULARY)) < value < torch.log(torch.tensor(tiny.VOCABULARY))


def test_the_old_model_is_the_start_of_the_domain_or_the_base_model() -> None:
    model = tiny.model("gpt2", dropout=0.1)
    stages.learn([], stages.stage(model, 1, "causal"))
    for anchor in ("last", "base"):
        method, stage = LwF(anchor=anchor), stages.stage(model, 2, "causal")
        assert method.needs.base_model == (anchor == "base")
        stages.begin([method], stage)
        wanted = stage.checkpoints[-1 if anchor == "last" else 0]
        teacher = method._teacher
        assert not teacher.training
        assert not any(p.requires_grad for p in teacher.parameters())
        assert all(torch.equal(p, wanted.get_parameter(name)) for name, p in teacher.named_parameters())
    stages.end([method], stage)
    assert method._teacher is None
    assert not method.memory()


def test_the_student_answers_more_like_its_teacher() -> None:
    far = []
    for weight in (0, 50.0):
        model = tiny.model("gpt2")
        batch = next(stages.stage(model, 1, "causal").batches(4))
        before = _logits(model, batch).detach().log_softmax(-1)
        stages.learn([LwF(weight=weight)], stages.stage(model, 1, "causal", steps=8), lr=1e-3)
        after = _logits(model, batch).detach().log_softmax(-1)
        far.append(float((before.exp() * (before - after)).sum(-1).mean()))
    assert far[1] < 0.6 * far[0]


@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_beside_a_pass_of_somebody_else_it_is_the_same(architecture: str, objective: str) -> None:
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, objective)
    protection = Protection([LwF()], stage)
    protection.begin()
    _moved(model)
    batch = next(stage.batches(3))
    wanted = protection.forward(model, batch)[1]["lwf/answers"]
    result, found = protection.beside(model, batch, lambda: stage.objective.forward(model, batch).loss)
    torch.testing.assert_close(found["lwf/answers"], wanted)
    torch.testing.assert_close(result, stage.objective.forward(model, batch).loss)
