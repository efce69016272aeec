"""What the speed benchmarks say of memory, and their table."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import stages
import tiny
from everlearn.methods import build
from everlearn.methods.engine.protection import Protection


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
