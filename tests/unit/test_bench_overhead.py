"""What the speed benchmarks say of memory, and their table."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import stages
import tiny
from everlearn.methods import build
from everlearn.methods.base import Method
from everlearn.methods.engine.protection import Protection
from everlearn.methods.penalties.penalty import JOINING, joined

SCALARS = 4096
"""Bytes of single numbers, which no method declares."""


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("harness")


class Trainer:
    """Holds 4 MB, then 8 MB more, and after that 4 MB again."""

    def train(self) -> None:
        first = torch.zeros(10**6)
        torch.zeros(2 * 10**6)
        del first
        torch.zeros(10**6)


def test_peak_memory_is_what_lives_at_once(harness: ModuleType) -> None:
    kept = torch.zeros(10**6)
    assert harness.peak_memory(lambda clock, steps: Trainer(), "cpu").whole == pytest.approx(12e6, rel=0.01)
    del kept


class Ends:
    """Holds 12 MB while it begins, and 4 MB in its steps."""

    def __init__(self) -> None:
        torch.zeros(3 * 10**6)

    def train(self) -> None:
        torch.zeros(10**6)


def test_peak_of_the_steps_alone(harness: ModuleType) -> None:
    found = harness.peak_memory(lambda clock, steps: Ends(), "cpu")
    assert found.whole == pytest.approx(12e6, rel=0.01)
    assert found.steps == pytest.approx(4e6, rel=0.01)


def test_table_of_what_methods_cost(harness: ModuleType) -> None:
    found = {
        name: {"seconds_per_step": seconds, "processor_seconds_per_step": seconds, "peak_bytes": peak}
        for name, seconds, peak in (("Plain", 2.0, 100e6), ("MIGU", 2.1, 150e6))
    }
    rows = harness.overhead_table(harness.beside_first(found)).splitlines()
    assert rows[2] == "| Plain | 2.000 | 1.000 | 1.000 | 100.0 | 1.000 |"
    assert rows[3] == "| MIGU | 2.100 | 1.050 | 1.050 | 150.0 | 1.500 |"
    found["Plain"] |= {"steps_bytes": 90e6, "declared_bytes": 0}
    found["MIGU"] |= {"steps_bytes": 140e6, "declared_bytes": 60e6}
    rows = harness.overhead_table(found).splitlines()
    assert rows[0].endswith("| steps over the first's, MB | declared, MB |")
    assert rows[2:] == [
        "| Plain | 2.000 | 1.000 | 1.000 | 100.0 | 1.000 | 0.0 | 0.0 |",
        "| MIGU | 2.100 | 1.050 | 1.050 | 150.0 | 1.500 | 50.0 | 60.0 |",
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "ewc", "samples": 4, "protect_base": True},
        {"name": "forget_me_not", "samples": 4, "cosine": 0, "representations": 0},
    ],
    ids=lambda spec: spec["name"],
)
def test_a_penalty_adds_no_copy_of_the_weights_to_the_peak(harness: ModuleType, spec: dict[str, Any]) -> None:
    """Its gradients come when the activations are gone, not before them."""

    def peak(*specs: dict[str, Any]) -> int:
        model = tiny.model()
        methods = [build(each) for each in specs]
        protection = Protection(methods, stages.stage(model, 1))
        protection.begin()
        batch = next(protection.stage.batches(64))

        def step() -> None:
            model.zero_grad()
            loss, parts = protection.loss(model, batch)
            assert len(parts) == 1 + len(specs)
            loss.backward()

        step()
        model.zero_grad()
        return harness.peaks(step, "cpu").whole

    copy = sum(4 * parameter.numel() for parameter in tiny.model().parameters())
    assert peak(spec) - peak() < copy / 10


@pytest.mark.parametrize(
    ("spec", "copies"),
    [({"name": "ewc", "samples": 4}, 2), ({"name": "mas", "samples": 4}, 2), ({"name": "l2"}, 1)],
    ids=["ewc", "mas", "l2"],
)
def test_measuring_importance_holds_the_new_one_and_a_samples_gradients(
    harness: ModuleType, spec: dict[str, Any], copies: int
) -> None:
    """At the end of a domain, beside what was known; neither squares nor old anchors live as further copies."""
    model, method = tiny.model(hidden_size=128, intermediate_size=512), build(spec)
    for index in (1, 2):
        protection = Protection([method], stages.stage(model, index))
        protection.begin()
        peak = harness.peaks(protection.end, "cpu").whole
    copy = sum(4 * parameter.numel() for parameter in model.parameters())
    assert peak < (copies + 0.5) * copy


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "ewc", "protect_base": True},
        {"name": "ewc", "gradients": "batch"},
        {"name": "ewc", "gradients": "steps"},
        {"name": "ewc", "include_penalty": True},
        {"name": "ewc_separate"},
        {"name": "mas"},
        {"name": "forget_me_not"},
        {"name": "budget", "general": None, "earlier": 0.1, "earlier_by": "predicted", "rank": 4},
        {"name": "corda", "r": 4},
        {"name": "lora_null", "r": 4},
    ],
    ids=lambda spec: "-".join(map(str, spec.values())),
)
def test_measuring_holds_what_is_declared(harness: ModuleType, spec: dict[str, Any]) -> None:
    """Beside the memory that is declared, and activations: of each sample's gradient both factors are kept."""
    model, method = tiny.model(hidden_size=128, intermediate_size=512), build({**spec, "samples": 4})
    cost = method.cost(model)
    assert cost.measuring_bytes
    for index in (1, 2):
        stage = stages.stage(model, index, general=True, steps=2)
        loss = partial(stage.objective.per_sample_loss, model, next(stage.batches(stage.batch_size)))
        activations = harness.peaks(loss, "cpu").whole
        protection = Protection([method], stage)
        known = held(method)
        begun = known + harness.peaks(protection.begin, "cpu").whole
        for rows in stage.batches(2 * stage.batch_size):
            protection.loss(stage.model, rows)[0].backward()
            protection.after_backward()
            stage.step += 1
        stage.model.zero_grad()
        known = held(method)
        peak = max(begun, known + harness.peaks(protection.end, "cpu").whole)
        assert peak <= cost.memory_bytes + cost.measuring_bytes + 2 * activations
        model = stage.model


def test_joining_penalties_holds_what_is_declared(harness: ModuleType) -> None:
    """Beside what is given: a copy of the known importance, faded, and the new anchor."""
    there, known, here, new = (torch.rand(500, 500) for _ in range(4))
    assert 8 + harness.peaks(lambda: joined(there, known, here, new), "cpu").whole / there.numel() <= JOINING + 0.01


def held(method: Method) -> int:
    """Bytes of what a method knows."""
    return sum(value.numel() * value.element_size() for value in method.memory().tensors.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_holds_what_is_declared(harness: ModuleType, dtype: torch.dtype) -> None:
    """Before the optimizer's step, in it, and while what may not move is put back."""

    def peak(*methods: Method) -> int:
        model = tiny.model().to(dtype)
        stage = stages.stage(model, 1)
        protection = Protection(methods, stage)
        protection.begin()
        optimizer = protection.optimizer(torch.optim.AdamW(model.parameters(), foreach=False))

        def update() -> None:
            with protection.update():
                optimizer.step()

        for batch in stage.batches(2 * stage.batch_size):
            protection.loss(model, batch)[0].backward()
            protection.after_backward()
            found = harness.peaks(update, "cpu").whole
        return int(found)

    mofo = build({"name": "mofo"})
    declared = mofo.cost(tiny.model().to(dtype)).memory_bytes
    assert 0.8 * declared < peak(mofo) <= declared + SCALARS
