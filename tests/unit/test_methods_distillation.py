"""Methods of `distillation/` against their equations in float64: knowledge distillation, LwF."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor, nn

import stages
import tiny
from everlearn.config.arguments import training_arguments
from everlearn.data.loader import BlockLoader
from everlearn.methods import build
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.base import Method
from everlearn.methods.distillation.kd import KD
from everlearn.methods.distillation.lwf import LwF
from everlearn.methods.distillation.teacher import teacher_of
from everlearn.methods.engine.protection import Protection
from everlearn.model.objectives import IGNORE
from everlearn.run.trainer import StageTrainer
from everlearn.seeding import seeded

KINDS = [("roberta", "masked"), ("gpt2", "causal"), ("t5", "text-to-text")]


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


def _hidden(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Last hidden state of the unmasked text, by the model's own interface."""
    inputs = {"input_ids": batch.get("plain_ids", batch["input_ids"])}
    inputs |= {key: batch[key] for key in ("attention_mask", "position_ids", "decoder_input_ids") if key in batch}
    if model.config.model_type != "roberta":
        inputs["use_cache"] = False  # a cache would undo the isolation of packed documents
    if model.config.model_type == "t5":
        return model(**inputs, output_hidden_states=True).decoder_hidden_states[-1]
    return model.base_model(**inputs).last_hidden_state


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Σ p (log p − log q) of two vectors of scores."""
    p, q = p.exp() / p.exp().sum(), q.exp() / q.exp().sum()
    return (p * (p.log() - q.log())).sum()


def _reference(student: Tensor, teacher: Tensor, batch: dict[str, Tensor], softmax: str) -> Tensor:
    """Text by text, distribution by distribution."""
    texts = []
    for n in range(len(student)):
        tokens = range(student.shape[1])
        if "decoder_input_ids" in batch:
            tokens = [t for t in tokens if batch["labels"][n, t] != IGNORE]
        if softmax == "features":
            texts.append(sum(_kl(student[n, t], teacher[n, t]) for t in tokens) / len(tokens))
        else:
            features = range(student.shape[2])
            texts.append(sum(_kl(student[n, list(tokens), h], teacher[n, list(tokens), h]) for h in features))
    return sum(texts) / len(texts)


@pytest.mark.parametrize("softmax", ["features", "sequence"])
@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_loss_and_gradient_are_the_equation(architecture: str, objective: str, softmax: str) -> None:
    model = tiny.model(architecture)
    method = KD(weight=0.7, softmax=softmax)
    stage = stages.stage(model, 1, objective)
    teacher = _double(model)
    stages.begin([method], stage)
    batch = next(stage.batches(3))
    protection = Protection([method], stage)
    assert protection.forward(model, batch)[1]["kd/divergence"].item() == pytest.approx(0, abs=1e-6)
    student = _double(_moved(model))
    _, extra = protection.forward(model, batch)
    expected = 0.7 * _reference(_hidden(student, batch), _hidden(teacher, batch).detach(), batch, softmax)
    assert expected > 1e-4
    torch.testing.assert_close(extra["kd/divergence"].double(), expected, rtol=1e-3, atol=1e-7)
    extra["kd/divergence"].backward()
    expected.backward()
    # The softmax over positions does not see a bias, whose gradient is noise around zero.
    scale = max(float(p.grad.abs().max()) for p in student.parameters() if p.grad is not None)
    for (name, parameter), reference in zip(model.named_parameters(), student.parameters(), strict=True):
        wanted = torch.zeros_like(reference) if reference.grad is None else reference.grad
        ours = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(
            ours.double(), wanted, rtol=1e-3, atol=1e-5 * scale, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_it_is_the_divergence_of_the_student_from_the_teacher() -> None:
    p, q = torch.tensor([1.0, 0.0, -1.0]).double(), torch.tensor([0.0, 0.5, 2.0]).double()
    a, b = (x.exp() / x.exp().sum() for x in (p, q))
    assert float(_kl(p, q)) == pytest.approx(sum(float(x) * math.log(float(x) / float(y)) for x, y in zip(a, b)))  # noqa: B905
    assert float(_kl(p, q)) != pytest.approx(float(_kl(q, p)), rel=1e-2), "the reference above tells them apart"


def test_the_teacher_is_the_model_that_the_domain_began_with_and_stays_so() -> None:
    method, model = KD(), tiny.model(dropout=0.1)
    for index in (1, 2):
        start = stages.weights(model)
        stage = stages.stage(model, index)
        seen: list[bool] = []

        def same(protection, _, method=method, start=start, seen=seen) -> None:
            teacher = method._teacher
            assert not teacher.training
            assert not any(p.requires_grad or p.grad is not None for p in teacher.parameters())
            seen.append(all(torch.equal(p, start[name]) for name, p in teacher.named_parameters()))

        parts = stages.learn([method], stage, each=same)
        assert seen == [True] * stage.steps
        assert parts[-1]["kd/divergence"] > parts[0]["kd/divergence"] >= 0
        assert method._teacher is None, "nothing of the model outlives the stage"
        assert not method.memory()
    assert not any("teacher" in name for name in model.state_dict())


def test_the_student_stays_nearer_to_its_teacher() -> None:
    moved = []
    for weight in (0, 100.0):
        model = tiny.model()
        batch = next(stages.stage(model, 1).batches(4))
        before = _hidden(model, batch).detach()
        stages.learn([KD(weight=weight)], stages.stage(model, 1, steps=10), lr=1e-3)
        moved.append(float((_hidden(model, batch) - before).square().mean().detach()))
    assert moved[1] < 0.5 * moved[0]


def test_released_has_dropout_in_the_teacher_and_the_softmax_over_positions() -> None:
    method = build("kd_released")
    assert isinstance(method, KD)
    assert (method.label, method.config.softmax) == ("kd_released", "sequence")
    model = tiny.model("gpt2", dropout=0.1)
    stage = stages.stage(model, 1, "causal")
    stages.begin([method], stage)
    batch = next(stage.batches(2))
    with seeded(0, "teacher"):
        _, extra = Protection([method], stage).forward(model.eval(), batch)
    # The student has no dropout; the teacher's is drawn where the reference draws its own.
    twin = copy.deepcopy(model)
    wanted = []
    for mode in (True, False):
        with seeded(0, "teacher"):
            teacher = _hidden(twin.train(mode), batch).detach()
        wanted.append(float(_reference(_hidden(twin.eval(), batch), teacher, batch, "sequence").detach()))
    assert wanted[1] == pytest.approx(0, abs=1e-6)
    assert wanted[0] > 1e-2
    assert float(extra["kd/divergence"].detach()) == pytest.approx(wanted[0], rel=1e-4)


def _first_step(methods: Sequence[Method], tmp_path: Path, precision: str) -> tuple[nn.Module, dict]:
    """The model that was trained and the log of its first step, by the Trainer on a CPU."""
    stage = stages.stage(tiny.model("gpt2"), 1, "causal", steps=1)
    lines: list[dict] = []
    trainer = StageTrainer(
        protection=(protection := Protection(methods, stage)),
        loader=BlockLoader(protection.begin(), stage.objective, 4, 1),
        args=training_arguments(
            {
                "bf16": precision == "bf16",
                "use_cpu": True,
                "per_device_train_batch_size": 4,
                "logging_steps": 1,
                "save_strategy": "no",
            },
            tmp_path,
            0,
            1,
        ),
        log=lines.append,
    )
    trainer.train()
    return stage.model, lines[0]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_teacher_computes_in_the_students_precision(tmp_path: Path, precision: str) -> None:
    model, line = _first_step([KD()], tmp_path, precision)
    assert ("_original_forward" in vars(model)) == (precision == "bf16"), "accelerate's way, which the teacher follows"
    assert line["kd/divergence"] == 0


def test_a_plain_teacher_computes_in_the_precision_of_a_student_with_adapters(tmp_path: Path) -> None:
    """Without dropout a student with new adapters is its teacher, whose class has another forward."""
    model, line = _first_step([KD(), IncLoRA(lora_dropout=0)], tmp_path, "bf16")
    assert isinstance(model, PeftModel)
    assert "_original_forward" in vars(model)
    assert line["kd/divergence"] == 0


@pytest.mark.parametrize("copies", [False, True])
def test_no_device_holds_two_complete_models_where_one_is_divided(copies: bool) -> None:
    """The model is in the host's memory while the teacher is made of it, and the teacher stays there."""
    stage, moves = stages.stage(tiny.model("gpt2"), 2, "causal"), list[str]()
    model = stage.model

    def tested(copied: nn.Module) -> nn.Module:
        moves.append("tested")
        return copied

    stage.sharded, stage.as_tested = True, tested if copies else None
    model.cpu = lambda: moves.append("to the host")
    model.to = lambda _: moves.append("back")
    teacher = teacher_of(stage)
    assert moves == ["to the host", *["tested"] * copies, "back"]
    assert next(teacher.parameters()) is not next(model.parameters())
    costs = [build(name).cost(model) for name in ("kd", "lwf", "forget_me_not", "lifelong_moe")]
    whole = sum(4 * weight.numel() for weight in model.parameters())
    assert all(whole <= cost.host_bytes < 1.1 * whole for cost in costs)


def test_cost_is_a_model_and_a_forward_pass() -> None:
    model = tiny.model()
    weights = {id(p): p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()]}
    cost = KD().cost(model)
    assert cost.memory_bytes == sum(weights.values())
    assert cost.disk_bytes == 0
    assert cost.passes_per_step == pytest.approx(4 / 3)
    assert KD().cost(tiny.model("gpt2")).passes_per_step == pytest.approx(1 / 3)
    assert KD(weight=0).cost(model).memory_bytes == 0


LWF_KINDS = [("roberta", "masked"), ("gpt2", "causal"), ("llama", "text-to-text"), ("t5", "text-to-text")]
TEMPERATURE, WEIGHT = 2.0, 0.7


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


def _lwf_reference(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
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
@pytest.mark.parametrize(("architecture", "objective"), LWF_KINDS)
def test_lwf_loss_and_gradient_are_the_equation(
    architecture: str, objective: str, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chunked:
        monkeypatch.setattr("everlearn.model.vocabulary_head.LOGITS_PER_CHUNK", 5 * tiny.VOCABULARY)
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, objective)
    protection = Protection([LwF(weight=WEIGHT, temperature=TEMPERATURE)], stage)
    protection.begin()
    teacher = _double(model)
    student = _double(_moved(model))
    batch = next(stage.batches(3))
    outputs, extra = protection.forward(model, batch)
    torch.testing.assert_close(outputs.losses, stage.objective.forward(model, batch).losses)
    expected = _lwf_reference(_logits(student, batch), _logits(teacher, batch).detach(), batch["labels"])
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
    expected = _lwf_reference(_logits(student, batch), _logits(teacher, batch), batch["labels"])
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
    expected = _lwf_reference(logits, _logits(teacher, batch).detach(), batch["labels"])
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


@pytest.mark.parametrize(("architecture", "objective"), LWF_KINDS)
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
