"""Cells of a grid: in one archive, committed, and what cells of one table share."""

from __future__ import annotations

import bz2
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everlearn import files
from everlearn.errors import RunError
from everlearn.evaluation import METRICS, QUANTITIES, Cell, Results, RunFacts, build_results, set_path
from everlearn.grid import load_results as load_grid
from everlearn.grid.archive import ARCHIVE, find_cell, find_cells, pack, unpack
from everlearn.grid.cells import load_cell, load_results
from everlearn.grid.identity import described, where_differ
from everlearn.grid.numbers import numbers

CELLS = {
    "das-order0-seed1": {"learnt": 0.1 + 0.2, "text": "caf\u00e9 \u2028 \u0085"},
    "das": {"b": [1, None, 2.0], "a": {"nested": True}},
    "ewc-order1-seed0": {},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, value in CELLS.items():
        files.write_json(tmp_path / f"{name}.json", value)
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}


def values(folder: Path) -> list[tuple[str, object]]:
    return [(name, kept.value) for name, kept in find_cells(folder).items()]


def test_packed_cells_are_what_they_were(folder: Path) -> None:
    before, loose = values(folder), texts(folder)
    assert [name for name, _ in before] == [*CELLS], "as their files are sorted: `das-…` before `das.json`"
    assert pack(folder) == 3
    assert [path.name for path in folder.iterdir()] == [ARCHIVE]
    assert values(folder) == before
    assert str(find_cells(folder)["das"].where) == f"das in {folder / ARCHIVE}"
    assert unpack(folder) == 3
    assert texts(folder) == loose


def test_the_same_cells_make_the_same_bytes(folder: Path) -> None:
    pack(folder)
    first = (folder / ARCHIVE).read_bytes()
    assert bz2.decompress(first).count(b"\n") == 3, "one line a cell"
    unpack(folder)
    for number, path in enumerate(sorted(folder.iterdir(), reverse=True)):
        os.utime(path, (number, number))
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() == first
    pack(folder)
    assert (folder / ARCHIVE).read_bytes() == first, "with nothing new there is nothing to write"


def test_a_new_cell_stands_beside_the_archive_and_counts_more(folder: Path) -> None:
    pack(folder)
    assert find_cell(folder, "other") is None
    files.write_json(folder / "das.json", {"again": 1})
    files.write_json(folder / "other.json", {"new": 1})
    kept = find_cell(folder, "das")
    assert kept is not None
    assert kept.value == {"again": 1}
    assert [name for name, _ in values(folder)] == ["das-order0-seed1", "das", "ewc-order1-seed0", "other"]
    assert pack(folder) == 4
    assert dict(values(folder))["das"] == {"again": 1}


DAMAGED = [b"no archive", bz2.compress(b"{}\n"), bz2.compress(b"x\n"), bz2.compress(b"[]" * 9)[:-4]]


@pytest.mark.parametrize("content", DAMAGED, ids=["other", "no name", "no JSON", "cut"])
def test_a_damaged_archive_is_named(folder: Path, content: bytes) -> None:
    (folder / ARCHIVE).write_bytes(content)
    with pytest.raises(RunError, match=ARCHIVE):
        find_cells(folder)
    with pytest.raises(RunError, match=ARCHIVE):
        find_cell(folder, "other")
    assert len(texts(folder)) == 3, "no file is removed"
    with pytest.raises(RunError, match=ARCHIVE):
        pack(folder)
    assert len(texts(folder)) == 3


def test_what_is_no_cell_is_named_with_its_archive(folder: Path) -> None:
    pack(folder)
    assert load_cell(folder, "none") is None
    with pytest.raises(RunError, match=rf"das in .*{ARCHIVE}' is no cell of a grid"):
        load_cell(folder, "das")
    with pytest.raises(RunError, match="is no cell of a grid"):
        load_results(folder)


def test_a_line_is_plain_json(folder: Path) -> None:
    pack(folder)
    lines = [json.loads(line) for line in bz2.decompress((folder / ARCHIVE).read_bytes()).splitlines()]
    assert [line["name"] for line in lines] == [*CELLS]
    assert all(line["cell"] == CELLS[line["name"]] for line in lines)


ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import demo_page  # noqa: E402

GRID = ROOT / "benchmarks" / "six-domains" / "results"


def test_the_committed_cells_of_the_grid_say_the_same() -> None:
    """Against sums written out here, from the files as they are."""
    found = load_grid(GRID)
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


def test_what_all_items_share_is_said_once() -> None:
    facts = {
        "recipe.domains": {"a": {"name": "a", "group": "x", "keep_last": 8}, "b": {"name": "b", "keep_last": 8}},
        "recipe.end_tasks": [
            {"name": "a", "domain": "a", "max_test": 3, "epochs": 1},
            {"name": "b", "domain": "b", "max_test": 3, "epochs": 2},
        ],
        "recipe.train": {"save_steps": 500, "logging_steps": 5, "max_steps": 7},
        "suite": {"answers": "head"},
        "model": "m 123",
        "corpora": {"a": ["1"]},
        "end_task_files": {"a": ["2"]},
    }
    assert described(facts) == [
        ("domains.*.keep_last", "8"),
        ("end_tasks.*.max_test", "3"),
        ("end_tasks.a.epochs", "1"),
        ("end_tasks.b.epochs", "2"),
        ("train.logging_steps", "5"),
        ("train.max_steps", "7"),
        ("suite.answers", "head"),
        ("model", "m 123"),
    ]


def test_a_difference_is_named_by_its_innermost_key() -> None:
    there, here = {"bf16": True, "max_steps": 5}, {"bf16": True, "max_steps": 7}
    assert where_differ("recipe.train", there, here) == ("train.max_steps", 5, 7)
    assert where_differ("recipe.train", None, here) == ("train", None, here)
    assert where_differ("model", "a", "b") == ("model", "a", "b")
