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
from everlearn.grid.numbers import numbers

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
        domains, stream = raw["domains"], raw["grid"]["order"] is not None
        if bits := scores(raw, "bits_per_byte"):
            end = raw["matrices"]["bits_per_byte"]["rows"][-1]
            assert own["bits"] == np.mean([bits[end, name] for name in domains])
            just = {name: name if stream else "alone" for name in domains}
            learnt = [bits["base", name] - bits[just[name], name] for name in domains if (just[name], name) in bits]
            assert own.get("bits_learnt") == (np.mean(learnt) if learnt else None)
            if stream:
                lost = [bits[end, name] - bits[name, name] for name in domains[:-1]]
                assert own["bits_forgotten"] == np.mean(lost)
        if f1 := scores(raw, "f1"):
            end = raw["matrices"]["f1"]["rows"][-1]
            assert own["f1"] == np.mean([f1[end, task] for task in domains])
            if stream:
                lost = [f1[task, task] - f1[end, task] for task in domains[:-1]]
                assert own["f1_forgetting"] == np.mean(lost)


def scores(raw: dict[str, Any], metric: str) -> dict[tuple[str, str], float]:
    """Return row and column → score, from the file as it is."""
    table = raw["matrices"].get(metric, {"cells": []})
    return {(row, column): value for row, column, value, *_ in table["cells"]}


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
