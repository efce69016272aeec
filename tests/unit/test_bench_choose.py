"""Choosing a row's own values: every row gets the trials it asks for, and a mistake is a sentence."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from bench_suite import TinySuite

ROWS = {
    "sequential": {"train.learning_rate": [1e-3, 3e-3]},
    "ewc": {"like": "sequential", "method.ewc.strength": [10, 100], "method.ewc.samples": [4, 8]},
}


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    module = importlib.import_module("choose")
    monkeypatch.setattr(module, "find_suite", lambda name: TinySuite(tmp_path))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"model": str(tmp_path / "model"), "train": {"max_steps": 2}}))
    return module


def asked(folder: Path, **changes: Any) -> Path:
    place = folder / "trials.yaml"
    raw = {"suite": "tiny", "settings": "small.yaml", "domains": ["a", "b"], "seed": 99, "rows": ROWS} | changes
    place.write_text(yaml.safe_dump(raw, sort_keys=False))
    return place


def told(self: Any, row: str, own: dict[str, Any]) -> dict[str, float]:
    """Accuracy and drift of a trial that nobody runs."""
    strength, samples = own.get("method.ewc.strength", 0), own.get("method.ewc.samples", 0)
    better = 0.1 * (own["train.learning_rate"] == 3e-3) + 0.01 * (strength == 10) + 0.001 * samples
    return {"accuracy": 0.5 + better, "bits_drift": 1.0 - 0.005 * strength}


@pytest.mark.parametrize(("within", "strength"), [(None, 10), (0.05, 100)])
def test_one_key_after_the_other_from_what_another_row_chose(
    within: float | None,
    strength: int,
    choose: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By accuracy; or, of what is nearly as accurate as plain training, by how little general text drifted."""
    made: list[dict[str, Any]] = []

    def measured(self: Any, row: str, own: dict[str, Any]) -> dict[str, float]:
        made.append(own)
        return told(self, row, own)

    monkeypatch.setattr(choose.Trials, "measured", measured)
    place, output = asked(tmp_path, **({"within": within} if within else {})), tmp_path / "tuned.yaml"
    arguments = [str(place), "--data", str(tmp_path), "--output", str(output), "--runs", str(tmp_path / "runs")]
    choose.main(arguments)
    assert len(made) == 2 + 2 + 2
    assert made[2] == {"train.learning_rate": 3e-3, "method.ewc.strength": 10}
    entries = yaml.safe_load(output.read_text())["grid"]["rows"]
    assert entries["sequential"] == {"train.learning_rate": 3e-3}
    chosen = {"train.learning_rate": 3e-3, "method.ewc.strength": strength, "method.ewc.samples": 8}
    if within:
        chosen["method.ewc.samples"] = 4  # of equal drift the first
    assert entries["ewc"] == chosen
    assert len(json.loads(output.with_suffix(".json").read_text())["rows"]["ewc"]["trials"]) == 4
    choose.main(arguments)
    assert len(made) == 6, "a trial that is there is not run again"
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"model": str(tmp_path / "model"), "train": {"max_steps": 3}}))
    with pytest.raises(SystemExit):
        choose.main(arguments)
    assert "holds trials with `train.max_steps` 2; here it is 3." in capsys.readouterr().err


def test_development_examples_stand_beside_the_test_part(choose: ModuleType) -> None:
    recipe = {"end_tasks": [{"name": "x", "test": "data/x/test.jsonl"}]}
    assert choose.development(recipe) == {"end_tasks.x.test": str(Path("data/x/dev.jsonl"))}


@pytest.mark.parametrize(
    ("changes", "more", "sentence"),
    [
        ({"seed": None}, [], "has no `seed`"),
        ({"rows": {"ewc": {"like": "sequential"}}}, [], r"`rows.ewc.like`: 'sequential' is no row before it"),
        ({"rows": {"ewc": {"strength": 3}}}, [], "keys and lists of values"),
        ({}, ["--rows", "ewcc"], "no row 'ewcc'. Did you mean 'ewc'"),
        ({}, ["--rows", "ewc"], "'ewc' begins with what was chosen for 'sequential'"),
        ({"settings": "none.yaml"}, [], "none.yaml"),
    ],
)
def test_a_mistake_is_a_sentence(
    changes: dict[str, Any],
    more: list[str],
    sentence: str,
    choose: ModuleType,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    place = asked(tmp_path, **changes)
    with pytest.raises(SystemExit, match="1"):
        choose.main([str(place), "--data", str(tmp_path), "--runs", str(tmp_path / "runs"), *more])
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
