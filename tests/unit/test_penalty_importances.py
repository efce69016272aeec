"""Scores of units, and the importances of SI, MAS and Fisher information against their formulas in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from penalty_stages import close, doubled, gradients_of, kept, moved, penalty
from torch import Tensor, nn

import stages
import tiny
from everlearn import files
from everlearn.errors import MethodError
from everlearn.importance import (
    accumulate,
    gradient_moment,
    labels_of_the_model,
    normalise,
    unit_importance,
)
from everlearn.methods import build
from everlearn.methods.base import Memory
from everlearn.model.objectives import IGNORE, Objective, make_objective
from everlearn.model.sharding import divided, full_tensor, is_divided, local
from two_processes import in_two_processes

scores = hnp.arrays("float32", st.integers(1, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32))


@given(scores, st.sampled_from(["tanh_abs", "relu_tanh", "rank"]))
@settings(max_examples=150, deadline=None)
def test_normalised_scores_are_in_range(values, how):
    found = normalise({"site": torch.from_numpy(values)}, how)["site"]
    assert found.dtype == torch.float32
    assert found.shape == values.shape
    assert torch.isfinite(found).all()
    assert (found >= 0).all()
    assert (found < 1).all()
    if values.size == 1 or (values == values[0]).all():
        assert not found.any()


@given(hnp.arrays("float64", 12, elements=st.floats(0, 1).map(lambda x: round(x, 3))), st.floats(0.1, 1e6))
@settings(max_examples=50, deadline=None)
def test_normalising_ignores_scale_and_follows_the_equation(values, scale):
    tensor = torch.from_numpy(values)
    found = normalise({"site": tensor})["site"]
    torch.testing.assert_close(normalise({"site": tensor * scale})["site"], found)
    if tensor.std() > 0:
        z = (tensor - tensor.mean()) / tensor.std()
        torch.testing.assert_close(found.double(), z.tanh().abs(), rtol=1e-5, atol=1e-6)
        above = normalise({"site": tensor}, "relu_tanh")["site"]
        torch.testing.assert_close(above, torch.where(z > 0, found, 0.0), rtol=1e-5, atol=1e-6)


def test_ranks_are_the_share_of_less_important_units():
    found = normalise({"site": torch.tensor([3.0, -1.0, 7.0, 3.0])}, "rank")["site"]
    assert found.tolist() == [0.375, 0.0, 0.75, 0.375]


@given(st.lists(hnp.arrays("float32", 6, elements=st.floats(0, 1, width=32)), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_accumulation_is_the_maximum_and_never_forgets(maps):
    tensors = [{"site": torch.from_numpy(values)} for values in maps]
    total = accumulate(tensors)["site"]
    assert torch.equal(total, torch.stack([m["site"] for m in tensors]).amax(0))
    assert (total >= accumulate(tensors[:-1] or tensors)["site"]).all()
    assert torch.equal(accumulate(reversed(tensors))["site"], total)


def test_scores_that_cannot_be_used_are_refused():
    with pytest.raises(MethodError, match="not finite"):
        normalise({"site": torch.tensor([1.0, float("nan")])})
    with pytest.raises(MethodError, match="one has 'b', another has not"):
        accumulate([{"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(2)}])
    with pytest.raises(MethodError, match="'a' has"):
        accumulate([{"a": torch.ones(2)}, {"a": torch.ones(3)}])
    assert accumulate([]) == {}


@pytest.mark.parametrize(
    ("norm", "formula"),
    [
        ("quadratic", lambda f, d: (f * d**2).sum()),
        ("root", lambda f, d: ((f * d**2).sum() + 1e-8).sqrt()),
        ("absolute", lambda f, d: (f * d.abs()).sum()),
    ],
)
def test_sis_strength_is_without_a_half_in_the_norm_that_has_one(norm: str, formula: Any) -> None:
    model, generator = tiny.model(), torch.Generator().manual_seed(2)
    importance = {name: torch.rand(p.shape, generator=generator) for name, p in model.named_parameters()}
    anchor = {name: p.detach() + 0.01 * torch.rand_like(p) for name, p in model.named_parameters()}
    tensors = {f"importance/{name}": value for name, value in importance.items()}
    method = build({"name": "si", "norm": norm, "strength": 0.3})
    method.load_memory(Memory(tensors | {f"anchor/{n}": v for n, v in anchor.items()}, {"domains": ["d1"]}))
    every, apart = (
        torch.cat([values[name].double().flatten() for name in anchor])
        for values in (importance, {name: p.detach() - anchor[name] for name, p in model.named_parameters()})
    )
    found = penalty(method, model).detach().double()
    torch.testing.assert_close(found, 0.3 * formula(every, apart), rtol=1e-4, atol=0)


def test_mas_is_the_mean_absolute_gradient_of_the_logits_squared_norm() -> None:
    method, model = build({"name": "mas", "samples": 3}), tiny.model()

    def size(double: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = double(input_ids=batch["input_ids"]).logits[0, batch["positions"][0]]
        return logits[batch["labels"][0] != IGNORE].square().sum(-1).mean()

    stage = stages.stage(model, 1)
    each = gradients_of(model, stage, size, 3)
    stages.end([method], stage)
    slow = {name: torch.stack([gradient[name].abs() for gradient in each]).mean(0) for name in each[0]}
    close(kept(method, "importance"), slow, rtol=1e-3)


def test_mas_holds_a_chunk_of_a_causal_batchs_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long rows and batch are, and with the same outcome."""
    found, seen = [], []
    square = Tensor.square

    def watched(values: Tensor) -> Tensor:
        seen.append(values.numel() if values.shape[-1] == tiny.VOCABULARY else 0)
        return square(values)

    monkeypatch.setattr(Tensor, "square", watched)
    for chunk in (2**26, 5 * tiny.VOCABULARY):
        monkeypatch.setattr("everlearn.model.vocabulary_head.LOGITS_PER_CHUNK", chunk)
        method = build({"name": "mas", "samples": 3})
        seen.clear()
        stages.end([method], stages.stage(tiny.model("gpt2"), 1, "causal", batch_size=4))
        assert 0 < max(seen) <= chunk
        found.append(kept(method, "importance"))
    close(found[1], {name: value.double() for name, value in found[0].items()}, rtol=1e-3)


def test_absolute_gradients_cancel_in_a_batch_and_so_are_taken_by_sample() -> None:
    model = tiny.model()
    stage = stages.stage(model, 1, batch_size=4)
    each = gradients_of(model, stage, stage.objective.per_sample_loss, 4)
    method = build({"name": "aewc", "samples": 4})
    stages.end([method], stage)
    together = gradient_moment(
        model.eval(), stage.batches(4), stage.objective.per_sample_loss, power=1, batch_means=True
    )
    slow = {name: torch.stack([gradient[name].abs() for gradient in each]).mean(0) for name in each[0]}
    means = {name: torch.stack([gradient[name] for gradient in each]).mean(0).abs() for name in each[0]}
    close(kept(method, "fisher"), slow, rtol=1e-3)
    close(together, means, rtol=1e-3)
    assert sum(value.sum() for value in means.values()) < 0.8 * sum(value.sum() for value in slow.values())


@pytest.mark.parametrize(("apply_to", "alpha"), [("loss", 1.0), ("update", 1.0), ("loss", 0.5)])
def test_si_integrates_the_tasks_gradient_along_the_path(apply_to: str, alpha: float) -> None:
    """ω, Ω and the penalty beside a training loop in float64 that knows no hooks.

    Where `wise_ft` keeps a part α of the way, Δ is the whole way, as ω is, and the anchor is what was kept.
    """
    strength, damping, rate = 3.0, 1e-3, 0.05
    beside = [build({"name": "wise_ft", "alpha": alpha})] if alpha < 1 else []
    method = build({"name": "si", "strength": strength, "damping": damping, "apply_to": apply_to})
    model = tiny.model()
    slow = type(model)(model.config).double().eval()
    slow.load_state_dict(model.state_dict())
    omega = {name: torch.zeros_like(p) for name, p in slow.named_parameters()}
    anchor = doubled(slow)
    for index in (1, 2):
        stage = stages.stage(model, index, steps=3)
        batches: list[dict[str, Tensor]] = []
        stages.learn(
            [method, *beside],
            stage,
            optimizer=torch.optim.SGD,
            lr=rate,
            momentum=0.9,
            each=lambda _, batch, batches=batches: batches.append(batch),
        )
        path = {name: torch.zeros_like(p) for name, p in slow.named_parameters()}
        start, speed = doubled(slow), {}
        for batch in batches:
            slow.zero_grad()
            stage.objective.forward(slow, batch).loss.backward()
            for name, p in slow.named_parameters():
                task = torch.zeros_like(p) if p.grad is None else p.grad.clone()
                whole = task + (2 * strength * omega[name] * (p.detach() - anchor[name]) if apply_to == "loss" else 0)
                speed[name] = whole if name not in speed else 0.9 * speed[name] + whole
                before = p.detach().clone()
                with torch.no_grad():
                    p.sub_(rate * speed[name])
                    if apply_to == "update":
                        p.copy_(anchor[name] + (p - anchor[name]) / (1 + rate * 2 * strength * omega[name]))
                path[name] -= task * (p.detach() - before)
        for name, p in slow.named_parameters():
            omega[name] += (path[name] / ((p.detach() - start[name]) ** 2 + damping)).clamp(min=0)
            p.data.copy_(start[name] + alpha * (p.detach() - start[name]))
        anchor = doubled(slow)
        close(kept(method, "importance"), omega, rtol=5e-3)
    assert any(not torch.equal(value, torch.zeros_like(value)) for value in omega.values())
    assert not any(name.startswith(("path/", "start/")) for name in method.memory().tensors)
    moved(model)
    value = sum(strength * (omega[n] * (p - anchor[n]) ** 2).sum() for n, p in doubled(model).items())
    if apply_to == "loss":
        torch.testing.assert_close(penalty(method, model).double().detach(), value, rtol=1e-2, atol=0)


def test_si_knows_the_penaltys_gradient_from_the_tasks() -> None:
    """With the whole gradient in ω a strong penalty would feed itself: the same first step must give the same path."""
    paths = []
    for strength in (1e-6, 1e4):
        method, model = build({"name": "si", "strength": strength}), tiny.model()
        tensors = {f"importance/{n}": torch.ones_like(p) for n, p in model.named_parameters()}
        tensors |= {f"anchor/{n}": p.detach() + 0.1 for n, p in model.named_parameters()}
        method.load_memory(Memory(tensors, {"domains": ["d1"]}))
        stage = stages.stage(model, 2, steps=1)
        read: dict[str, Tensor] = {}
        stages.learn(
            [method],
            stage,
            each=lambda *_, method=method, read=read: read.update({n: t.clone() for n, (t, _) in method._step.items()}),
        )
        paths.append(read)
    for name, gradient in paths[0].items():
        torch.testing.assert_close(paths[1][name], gradient, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", [{"name": "si"}, {"name": "ewc", "gradients": "steps"}])
def test_gradients_of_a_scaled_loss_are_refused(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlearn.methods.penalties.penalty.is_initialized", lambda: True)
    monkeypatch.setattr(
        "everlearn.methods.penalties.penalty.AcceleratorState", lambda: SimpleNamespace(mixed_precision="fp16")
    )
    with pytest.raises(MethodError, match=r"Set `train\.bf16` instead"):
        stages.learn([build(spec)], stages.stage(tiny.model(), 1, steps=1))
    stages.learn([build({**spec, "strength": 0})], stages.stage(tiny.model(), 1, steps=1))


def test_fisher_information_of_the_last_steps() -> None:
    """n ĝ² of the steps that see the last samples, beside a loop in float64; the penalty's gradient is not in it."""
    method = build({"name": "ewc", "gradients": "steps", "samples": 7, "strength": 50.0})
    assert not method.needs.importance_pass
    model, rate = tiny.model(), 0.05
    slow = type(model)(model.config).double().eval()
    slow.load_state_dict(model.state_dict())
    known, anchor = {name: torch.zeros_like(p) for name, p in slow.named_parameters()}, doubled(slow)
    for index in (1, 2):
        stage = replace(stages.stage(model, index, steps=4), rows_per_step=4)
        batches: list[dict[str, Tensor]] = []
        stages.learn(
            [method],
            stage,
            optimizer=torch.optim.SGD,
            lr=rate,
            each=lambda _, batch, batches=batches: batches.append(batch),
        )
        squares = {name: torch.zeros_like(p) for name, p in slow.named_parameters()}
        for step, batch in enumerate(batches):
            slow.zero_grad()
            stage.objective.forward(slow, batch).loss.backward()
            for name, p in slow.named_parameters():
                task = torch.zeros_like(p) if p.grad is None else p.grad.clone()
                squares[name] += 4 * task**2 / 2 if step >= 2 else 0
                with torch.no_grad():
                    p.sub_(rate * (task + 50 * known[name] * (p - anchor[name])))
        for name in known:
            known[name] += squares[name]
        anchor = doubled(slow)
        close(kept(method, "fisher"), known, rtol=5e-3)
    assert not any(name.startswith("squares/") for name in method.memory().tensors)


def test_what_was_gathered_from_steps_is_remembered_within_a_domain() -> None:
    spec = {"name": "ewc", "gradients": "steps", "samples": 4}
    method, other = build(spec), build(spec)
    stage = replace(stages.stage(tiny.model(), 1, steps=2), rows_per_step=4)
    stages.learn([method], stage, each=lambda protection, _: other.load_memory(method.memory()))
    stages.end([other], stage)
    close(kept(other, "fisher"), {n: v.double() for n, v in kept(method, "fisher").items()}, rtol=1e-6)


@pytest.mark.parametrize("key", [{"labels": "model"}, {"importance": "absolute"}, {"dropout": True}])
def test_what_is_about_a_pass_over_samples_is_refused_beside_steps(key: dict[str, Any]) -> None:
    with pytest.raises(MethodError, match=rf"option '{next(iter(key))}'.* and `gradients: steps` has none"):
        build({"name": "ewc", "gradients": "steps", **key})


def test_si_counts_no_negative_importance() -> None:
    method, model = build({"name": "si"}), tiny.model()
    stages.learn([method], stages.stage(model, 1, steps=2), maximize=True)  # every weight goes against its gradient
    importance = [v for n, v in method.memory().tensors.items() if n.startswith("importance/")]
    assert all(torch.equal(value, torch.zeros_like(value)) for value in importance)


def test_the_path_of_si_is_in_float32_beside_16_bit_weights() -> None:
    method, model = build({"name": "si"}), tiny.model().to(torch.bfloat16)
    method.begin_training(stages.stage(model, 1, steps=1))
    held = [*method._start.values(), *method._path.values()]
    assert len(held) == 2 * len(list(model.parameters()))
    assert {value.dtype for value in held} == {torch.float32}


# -- importance measured on a model that FSDP2 has divided is that of the complete model -------------------------------

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "squares": ("llama", {"power": 2}),
    "sizes": ("llama", {"power": 1}),
    "tied": ("gpt2", {"power": 2}),
    "batches": ("llama", {"power": 2, "batch_means": True}),
    "some": ("llama", {"names": ["model.layers.1.mlp.up_proj.weight", "lm_head.weight"]}),
    "decayed batches": ("gpt2", {"power": 2, "batch_means": True, "decay": 0.5}),
    "decayed sizes": ("llama", {"power": 1, "decay": 0.5}),
}
"""Name → architecture and how importance is measured."""
ROWS = (3, 3, 1)
"""Of the batches: neither they nor their sum can be shared out evenly."""


def model_of(architecture: str) -> nn.Module:
    return tiny.model(architecture, dropout=0.0).eval()


def batches(objective: Objective) -> Iterator[dict[str, Tensor]]:
    blocks, at = stages.blocks(sum(ROWS), 1), 0
    for rows in ROWS:
        yield objective.collate(blocks[at : at + rows], range(at, at + rows))
        at += rows


def measured(model: nn.Module, decay: float = 0.0, **how: Any) -> dict[str, Tensor]:
    """With a decay the loss of each sample has a term decay/2 · Σ θ², which FSDP2 knows nothing of."""
    objective = make_objective(None, model, tiny.tokenizer())
    if decay:
        how["constant"] = {name: decay * weight.detach() for name, weight in model.named_parameters()}
    return gradient_moment(model, batches(objective), objective.per_sample_loss, **how)


def of_the_model(model: nn.Module) -> dict[str, Tensor]:
    """With labels of the model, for which there is a pass without gradients before."""
    objective = make_objective(None, model, tiny.tokenizer())
    drawn = labels_of_the_model(model, batches(objective), objective, 1)
    return gradient_moment(model, drawn, objective.per_sample_loss)


def of_units(model: nn.Module) -> dict[str, Tensor]:
    objective = make_objective(None, model, tiny.tokenizer())
    return unit_importance(model, batches(objective), objective.per_sample_loss)


def overflowing(model: nn.Module) -> dict[str, Tensor]:
    objective = make_objective(None, model, tiny.tokenizer())

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return objective.per_sample_loss(model, batch) * torch.inf

    return gradient_moment(model, batches(objective), loss)


def half(rank: int, folder: Path) -> None:
    """Measure on shards; only the first process keeps what it gathers."""
    found: dict[str, Tensor] = {}
    for case, (architecture, how) in {**CASES, "drawn": ("llama", {})}.items():
        model = model_of(architecture)
        with divided(model) as parts:
            assert is_divided(parts)
            assert not is_divided(model)
            importance = of_the_model(parts) if case == "drawn" else measured(parts, **how)
            if case == "squares":  # once more, as with several methods in a list: a measurement leaves nothing behind
                found |= {f"units/{site}": value for site, value in of_units(parts).items()}
                importance = measured(parts, **how)
            assert all(weight.grad is None for weight in parts.parameters())
        for name, value in importance.items():
            assert local(value).numel() <= (value.numel() + 1) // 2 + value[0].numel()
            found[f"{case}/{name}"] = full_tensor(value)
    with divided(model) as parts, pytest.raises(MethodError, match="is not finite"):
        overflowing(parts)
    if rank == 0:
        files.save_tensors(folder / "found.safetensors", found, {})


@pytest.mark.distributed
def test_two_processes_with_shards_measure_what_one_measures(tmp_path: Path) -> None:
    in_two_processes(half, tmp_path)
    found = files.load_tensors(tmp_path / "found.safetensors")
    for case, (architecture, how) in CASES.items():
        expected = measured(model_of(architecture), **how)
        assert {name for name in found if name.startswith(f"{case}/")} == {f"{case}/{name}" for name in expected}
        for name, value in expected.items():
            torch.testing.assert_close(found[f"{case}/{name}"], value, rtol=1e-4, atol=1e-6 * float(value.max()))
    for name, value in of_the_model(model_of("llama")).items():
        torch.testing.assert_close(found[f"drawn/{name}"], value, rtol=1e-4, atol=1e-6 * float(value.max()))
    for site, value in of_units(model_of("llama")).items():
        torch.testing.assert_close(found[f"units/{site}"], value, rtol=1e-4, atol=1e-6 * float(value.max()))
