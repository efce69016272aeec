"""Committed cells of a grid and of runs are read and give the numbers that they gave."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everlearn.evaluation import METRICS, QUANTITIES, Cell, Results, RunFacts, build_results, set_path
from everlearn.grid import load_results
from everlearn.grid.archive import find_cells
from everlearn.grid.summary import numbers

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import demo_page  # noqa: E402

GRID = ROOT / "benchmarks" / "six-domains" / "results"


def test_the_committed_cells_of_the_grid_say_the_same() -> None:
    """Against sums written out here, from the files as they are."""
    found = load_results(GRID)
    files = find_cells(GRID)
    assert [cell.name for cell in found] == [*files]
    assert len(found) > 50
    for cell in found:
        raw, own = files[cell.name].value, numbers(cell)
        bits, domains = raw["bits_per_byte"], raw["domains"]
        stream = raw["order"] is not None
        if bits:
            assert own["bits"] == np.mean([bits[name]["final"] for name in domains])
            learnt = [bits[name]["base"] - bits[name]["learnt"] for name in domains if "learnt" in bits[name]]
            assert own.get("bits_learnt") == (np.mean(learnt) if learnt else None)
        if stream:
            lost = [bits[name]["final"] - bits[name]["learnt"] for name in domains[:-1]]
            assert own["bits_forgotten"] == np.mean(lost)
            mean = {task: {m: np.mean(scores["f1"]) for m, scores in raw["tasks"][task].items()} for task in domains}
            assert own["f1_forgetting"] == np.mean([mean[t]["learnt"] - mean[t]["final"] for t in domains[:-1]])
        if raw["tasks"]:
            assert own["f1"] == np.mean([np.mean(task["final"]["f1"]) for task in raw["tasks"].values()])


@pytest.fixture(scope="module")
def demo() -> Path:
    return Path(demo_page.unpacked().name)


@pytest.mark.parametrize("name", demo_page.METHODS)
def test_the_committed_cells_of_a_run_make_its_committed_results(demo: Path, name: str) -> None:
    """Scores, intervals and every quantity, but for the last bits, which another processor may round otherwise."""
    kept = json.loads((demo / name / "results.json").read_text(encoding="utf-8"))
    facts = RunFacts(**{key: kept[key] for key in RunFacts.model_fields})
    places = {
        (row, column): set_path(demo / name / "evaluation", row, column)
        for row in range(len(kept["domains"]) + 1)
        for column in [*kept["domains"], *kept["general"]]
    }
    cells = {where: Cell.load(place) for where, place in places.items()}
    again = json.loads(build_results(facts, kept["domains"], kept["general"], cells).model_dump_json())
    assert list(again["matrices"]) == list(kept["matrices"])
    assert set(kept["matrices"]) <= set(METRICS)
    for key in ("matrices", "summary"):
        assert same(again[key], kept[key]), key
    assert all(set(found) <= set(QUANTITIES) for found in kept["summary"].values())
    assert Results.load(demo / name).summary["bits_per_byte"].forgotten, "there is something to compare"


def same(found: Any, kept: Any) -> bool:
    if isinstance(kept, dict):
        return found.keys() == kept.keys() and all(same(found[key], kept[key]) for key in kept)
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(same, found, kept))
    return bool(found == pytest.approx(kept, rel=1e-12) if isinstance(kept, float) else found == kept)
