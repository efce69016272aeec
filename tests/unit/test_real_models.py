"""The search on a real pretrained model: its rules are as they were committed, its page says what its trials say."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from everlearn.commands.recommendation import METHOD, learning_rate
from everlearn.config.recipe import load
from everlearn.report.tables import markdown_table

ROOT = Path(__file__).parents[2]
HERE = ROOT / "benchmarks" / "real-models"
PARAMETERS = 134_515_008


@pytest.fixture(scope="module")
def scripts() -> tuple[ModuleType, ModuleType]:
    return script("run"), script("page")


def script(name: str) -> ModuleType:
    """Load a script under a name of its own: other benchmarks have a ``run.py`` too."""
    spec = importlib.util.spec_from_file_location(f"real_models_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_every_row_has_equally_many_trials_and_the_same_draws(scripts: tuple[ModuleType, ModuleType]) -> None:
    run, _ = scripts
    trials = run.trials()
    counts = Counter(trial.row for trial in trials)
    assert counts.pop("recommended") == 1
    assert set(counts.values()) == {8}
    rates = {row: [t.learning_rate for t in trials if t.row == row] for row in counts}
    drawn = [sorted(own) for row, own in rates.items() if row not in ("plain", "lora")]
    assert all(own == drawn[0] for own in drawn)
    assert min(rates["plain"]) <= min(drawn[0])
    assert max(rates["plain"]) >= max(drawn[0])


def test_every_trial_is_a_recipe(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    run, _ = scripts
    for trial in run.trials():
        changes = run.overrides(trial, tmp_path, tmp_path)
        assert load(HERE / "development.yaml", changes).methods(), trial.name


def test_what_is_called_recommended_is_what_init_writes(scripts: tuple[ModuleType, ModuleType]) -> None:
    run, _ = scripts
    (trial,) = [trial for trial in run.trials() if trial.row == "recommended"]
    assert [method | {"samples": 50} for method in trial.methods] == list(METHOD)
    assert trial.learning_rate == pytest.approx(learning_rate("decoder", PARAMETERS), rel=0.05)


def test_the_page_says_what_the_trials_say(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, page = scripts
    lines = [json.loads(line) for line in (HERE / "development.jsonl").read_text(encoding="utf-8").splitlines()]
    text = page.PAGE.read_text(encoding="utf-8")
    assert all(markdown_table(table, 3) in text for table in page.tables(lines))
    assert json.loads(page.PAGE.with_suffix(".json").read_text(encoding="utf-8")) == page.summary(lines)
    assert len({json.dumps(line["machine"], sort_keys=True) for line in lines}) == 1, "one kind of arithmetic"
