"""A forgetting budget on models with adapters: on the effective weights, against references in float64."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from protected_run import OPTIONS, collator, rows
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import stages
import tiny
from everlearn.data.blocks import PackedBlocks
from everlearn.errors import MethodError
from everlearn.importance import label_fisher
from everlearn.methods import build
from everlearn.methods.base import Stage
from everlearn.methods.engine.protection import Protection
from everlearn.methods.penalties import drift_prediction
from everlearn.methods.penalties.budget import Budget, LastCheck
from everlearn.methods.penalties.drift_prediction import CurvedEllipsoid, Ellipsoid, Known, ellipsoid
from everlearn.methods.penalties.drift_probe import Drift, DriftProbe
from everlearn.model.peft_adapter import merged
from everlearn.protecting import protect

SMALL: dict[str, Any] = {"samples": 16, "probe": 24, "checks": 6}


def adapted(seed: int = 1) -> PeftModel:
    """A tiny model with an adapter that does something."""
    torch.manual_seed(0)
    model = get_peft_model(copy.deepcopy(knowing()), LoraConfig(target_modules="all-linear", r=4)).eval()
    jolt(model, seed, 0.01)
    return model


def jolt(model: nn.Module, seed: int, size: float = 0.05) -> None:
    """Move what is trained."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def words(name: str, first: int, count: int = 60) -> PackedBlocks:
    """Rows of random tokens of some 40, which is what a tiny model can know of a text."""
    drawn = np.random.default_rng(first)
    rows = [drawn.integers(first, first + 40, stages.S, dtype=np.int32) for _ in range(count)]
    return PackedBlocks.from_blocks([{"input_ids": r, "segments": np.zeros_like(r)} for r in rows], first, name)


def a_stage(model: nn.Module, index: int = 1, steps: int = 10) -> Stage:
    """A domain of some tokens, and general text of others."""
    stage = stages.stage(model, index, "causal", steps=steps, general=True)
    stage.source, stage.general = words(stage.domain, 60 * index), words("general", 10)
    return stage


@functools.cache
def knowing() -> nn.Module:
    """A tiny model that knows the general text."""
    stage = a_stage(tiny.model("llama"), steps=60)
    stage.source = stage.general
    stages.learn([], stage, lr=1e-2)
    return stage.model


def effective(model: PeftModel) -> dict[str, Tensor]:
    """W_0 + s B A in float64, written down by itself."""
    return {
        f"{path}.weight": module.base_layer.weight.detach().double()
        + module.scaling["default"]
        * (module.lora_B["default"].weight.detach().double() @ module.lora_A["default"].weight.detach().double())
        for path, module in model.get_base_model().named_modules()
        if hasattr(module, "lora_A")
    }


def test_the_quadratic_is_that_of_the_effective_weights() -> None:
    """F as measured on the merged model, θ̄ = W + s B A, and ½ ‖G (θ − θ̄)‖² in float64."""
    model, method = adapted(), Budget(**SMALL, earlier=None)
    start, stage = effective(model), a_stage(model)
    Protection([method], stage).begin()
    known = method._known["general"]
    plain = merged(copy.deepcopy(model)).requires_grad_(True)
    drawn = (stage.objective, stage.seed, "budget", "general")
    fisher = label_fisher(plain, stage.batches(16, stage.general), *drawn, names=list(start))
    assert known.importance.keys() == start.keys(), "nothing is kept of weights that do not move"
    ratios = torch.cat([(known.importance[n] / fisher[n])[fisher[n] > 1e-12].flatten() for n in start]).double()
    assert float(ratios.std() / ratios.mean()) < 1e-3, "but for the unit, bits per byte"
    for name, value in start.items():
        torch.testing.assert_close(known.anchor[name].double(), value, rtol=0, atol=1e-6)
    jolt(model, 2)
    moved = torch.zeros(8, dtype=torch.float64)
    for name, value in effective(model).items():
        moved += known.directions[name].double().flatten(1) @ (value - start[name]).flatten()
    inside = ellipsoid("budget", known, model)
    assert isinstance(inside, CurvedEllipsoid)
    assert inside.predicted() == pytest.approx(float(moved.square().sum()) / 2, rel=1e-4)
    assert type(ellipsoid("budget", known, plain)) is Ellipsoid


class _Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5, bias=False)


@pytest.mark.parametrize("second", [False, True])
def test_what_is_trained_moves_against_the_gradient_in_the_optimizers_metric(
    second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One damped Newton step, written out in float64 for A and B of a layer."""
    torch.manual_seed(0)
    model = get_peft_model(_Product(), LoraConfig(target_modules=["layer"], r=2))
    jolt(model, 1, 0.5)
    (name,) = effective(model)
    fisher, anchor = torch.rand(5, 6), effective(model)[name].float() + 0.1 * torch.randn(5, 6)
    known = Known({name: fisher}, {name: anchor}, {name: torch.randn(2, 5, 6)}, texts=["a"])
    a, b = (model.get_parameter(f"base_model.model.layer.lora_{x}.default.weight") for x in "AB")
    optimizer = torch.optim.AdamW([a, b])
    moments = [torch.rand(p.shape) if second else torch.ones(p.shape) for p in (a, b)]
    for p, moment in zip((a, b), moments, strict=True):
        optimizer.state[p]["exp_avg_sq"] = moment
    slow = [p.detach().double() for p in (a, b)]
    scale = model.get_base_model().layer.scaling["default"]
    f, gap = fisher.double(), effective(model)[name] - anchor.double()
    before = float((f * gap.square()).sum()) / 2
    slopes = [scale * slow[1].T @ (f * gap), scale * (f * gap) @ slow[0].T]
    moved = [scale * slow[1] @ slopes[0], scale * slopes[1] @ slow[0]]
    curved = [2 * (f * m.square()).sum() / g.square().sum() for m, g in zip(moved, slopes, strict=True)]
    rates = [1 / (moment.double().sqrt() + 1e-8) for moment in moments]
    pull = 0.2 * before / sum((g * rate * g).sum() for g, rate in zip(slopes, rates, strict=True))
    inside = CurvedEllipsoid("budget", known, model)
    monkeypatch.setattr(drift_prediction, "NEWTON", 1)
    with torch.no_grad():
        inside._shrink(0.8, optimizer)
    assert 0.8 * before < inside.diagonal() < 0.95 * before
    for p, start, g, rate, curvature in zip((a, b), slow, slopes, rates, curved, strict=True):
        expected = start - pull * rate * g / (1 + pull * rate * curvature)
        torch.testing.assert_close(p.detach().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [0.9, 0.3])
def test_a_large_excess_is_removed_too(share: float) -> None:
    """Whatever the shape: the goal is reached, and never by more than rounding or from the wrong side."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = get_peft_model(_Product(), LoraConfig(target_modules=["layer"], r=5))
        jolt(model, seed, 0.5)
        (name,) = effective(model)
        fisher, anchor = torch.rand(5, 6) ** 6, effective(model)[name].float()
        known = Known({name: fisher}, {name: anchor}, {name: torch.randn(2, 5, 6)}, texts=["a"])
        jolt(model, seed + 10, 0.3)
        inside = CurvedEllipsoid("budget", known, model)
        goal = share * inside.diagonal()
        with torch.no_grad():
            inside._shrink(share, None)
        assert inside.diagonal() <= goal * 1.002


def _learnt(low_rank: str | None, budget: float, lr: float = 2e-3, domains: int = 2) -> tuple[list[Any], list[Any]]:
    """A stream under a budget; the logged lines of the last looks, and the notes."""
    model: nn.Module = copy.deepcopy(knowing()) if low_rank else adapted()
    method, lines, notes = Budget(**SMALL, general=budget, earlier=budget), [], []
    others = [build({"name": low_rank, "lora_dropout": 0.0, "target_modules": "all-linear"})] if low_rank else []
    for index in range(1, domains + 1):
        stage = a_stage(model, index, steps=12)
        stage.log = lambda line, index=index: lines.append({"stage": index} | line)
        stages.learn([method, *others], stage, lr=lr)
        model, notes = stage.model, [*notes, *stage.notes]
    last = {line["stage"]: line for line in lines if "share" in line}
    return list(last.values()), notes


@pytest.mark.parametrize("low_rank", ["lora", "inc_lora", None])
def test_every_domain_ends_within_the_budget_as_measured(low_rank: str | None) -> None:
    """A third of what is lost without a limit: with the adapters of a method, and with the model's own."""
    last, notes = _learnt(low_rank, 1e6)
    budget = max(line["drift"]["general"]["measured"] for line in last) / 3
    assert budget > 0.01 / 3
    last, notes = _learnt(low_rank, budget)
    assert len(last) == 2
    for line in last:
        for found in line["drift"].values():
            assert found["measured"] <= budget or line["share"] == 0
    assert max(line["share"] for line in last) > 0.3, "without going back most of the way"
    assert sum(note.startswith("Forgetting budget after") for note in notes) == 2


def test_a_budget_that_is_never_reached_is_plain_lora_bit_for_bit() -> None:
    """Beside the rows that are held out."""
    weights = []
    for methods in ([Budget(general=1e6, earlier=1e6, earlier_by="predicted", samples=4, probe=4, checks=2)], []):
        model: nn.Module = tiny.model("gpt2", dropout=0.1)
        for index in (1, 2):
            stage = stages.stage(model, index, "causal", general=True)
            stages.learn([*methods, build("lora")], stage)
            model = stage.model
        weights.append(stages.weights(model))
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize(("budget", "said"), [(2000.0, "All"), (500.0, "scaled back"), (1e-9, "rolled")])
def test_the_adapter_is_scaled_back_to_what_is_within(
    budget: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the drift is 1000 s² of the way of A and B: the same share of both is kept."""
    model = adapted()
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    plain = copy.deepcopy(model)
    stages.learn([], a_stage(plain, steps=4))
    end = {name: p.detach().clone() for name, p in plain.named_parameters() if p.requires_grad}

    def gone(of: nn.Module) -> float:
        return sum(float((p.detach() - start[n]).square().sum()) for n, p in of.named_parameters() if n in start)

    way = gone(plain)
    monkeypatch.setattr(DriftProbe, "drift", lambda self, stage: Drift(1000 * gone(stage.model) / way, 0.0))
    monkeypatch.setattr(LastCheck, "limit", lambda *_: 1e9)
    # The same rows are learnt where none of the domain's are held out.
    stages.learn([Budget(general=budget, earlier=None, samples=4, probe=4, checks=1)], stage := a_stage(model, steps=4))
    assert said in stage.notes[-1]
    share = {2000.0: 1.0, 500.0: 90 / 128, 1e-9: 0.0}[budget]
    for name, value in start.items():
        expected = torch.lerp(value, end[name], share)
        torch.testing.assert_close(model.get_parameter(name).detach(), expected, rtol=1e-6, atol=1e-7)
    assert not stage.start


def test_a_trainer_with_an_adapter_keeps_to_its_budget(tmp_path: Path) -> None:
    """Two domains with the same adapter, general text as bytes of a file."""
    general = tmp_path / "general.txt"
    general.write_text("\n".join(f"the model learns new words {n} and keeps what it knew" for n in range(80)))
    model = adapted()
    for domain in ("first", "second"):
        trainer = Trainer(
            model=model,
            args=TrainingArguments(str(tmp_path / "out"), **OPTIONS | {"max_steps": 6, "learning_rate": 3e-2}),
            train_dataset=rows(24),
            data_collator=collator("gpt2"),
            processing_class=tiny.tokenizer(),
        )
        method = {"name": "budget", "general": 0.05, "earlier": 0.05, "samples": 8, "probe": 8, "checks": 3}
        protect(trainer, [method], memory=tmp_path / "memory", domain=domain, general=str(general))
        trainer.train()
        (note,) = [n for n in trainer.protected.stage.notes if n.startswith("Forgetting budget")]
        assert f"'{domain}'" in note
    lost = trainer.protected.protection.methods[0]
    assert lost._known["general"].importance.keys() == effective(model).keys()


def test_a_trainer_without_a_tokenizer_is_told_to_take_one(tmp_path: Path) -> None:
    trainer = Trainer(
        model=tiny.model("gpt2"),
        args=TrainingArguments(str(tmp_path / "out"), **OPTIONS),
        train_dataset=rows(24),
        data_collator=collator("gpt2"),
    )
    with pytest.raises(MethodError, match="processing_class"):
        protect(trainer, [{"name": "budget", "general": None}], memory=tmp_path / "memory")
