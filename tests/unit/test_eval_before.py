"""What earlier versions wrote, cells and results of a run and the grid's committed files, gives the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from everlearn.benchmarking import load_results
from everlearn.benchmarking.archive import find_cells
from everlearn.benchmarking.summary import numbers
from everlearn.evaluation import (
    METRICS,
    QUANTITIES,
    Cell,
    Results,
    RunFacts,
    build_results,
    set_path,
    task_path,
)
from everlearn.report import compare

RUN = Path(__file__).parent.parent / "data" / "run-0.1.0"
GRID = Path(__file__).parents[2] / "benchmarks" / "six-domains" / "results"
RAW = json.loads((RUN / "results.json").read_text())
DOMAINS, TASKS = RAW["domains"], RAW["matrices"]["accuracy"]["task_domains"]


def cells(place, names):
    rows = enumerate(["base", *DOMAINS])
    paths = {(row, name): (place(RUN / "evaluation", row, name), label) for row, label in rows for name in names}
    return {where: Cell.load(path, label) for where, (path, label) in paths.items() if path.is_file()}


@pytest.fixture(scope="module")
def again() -> Results:
    facts = RunFacts(**{name: RAW[name] for name in RunFacts.model_fields})
    general = RAW["general"]
    alone = {name: Cell.load(RUN / "evaluation" / "alone" / f"{name}.safetensors") for name in DOMAINS}
    losses, tasks = cells(set_path, [*DOMAINS, *general]), cells(task_path, TASKS)
    assert len(losses) == 16
    assert len(tasks) == 7
    return build_results(facts, DOMAINS, general, losses, tasks, TASKS, alone)


def same(found, kept):
    """Equal but for the last bits, which another processor may round otherwise; what is absent is absent in both."""
    if isinstance(kept, dict):
        return found.keys() == kept.keys() and all(same(found[key], kept[key]) for key in kept)
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(same, found, kept))
    return found == pytest.approx(kept, rel=1e-12) if isinstance(kept, float) else found == kept


def test_scores_and_intervals_of_a_run(again):
    assert list(again.matrices) == list(RAW["matrices"])
    for metric, kept in RAW["matrices"].items():
        table = again.matrices[metric]
        assert (table.rows, table.columns, table.unit) == (kept["rows"], kept["columns"], kept["unit"])
        for part in ("values", "low", "high"):
            assert same(getattr(table, part), kept[part]), (metric, part)


def test_what_was_learnt_and_forgotten_in_a_run(again):
    found = json.loads(again.model_dump_json())
    for metric, kept in RAW["summary"].items():
        assert same({key: found["summary"][metric][key] for key in kept}, kept), metric
    assert same({key: found["study"][key] for key in RAW["study"]}, RAW["study"])
    assert RAW["summary"]["loss"]["forgotten"], "there is something to compare"


def test_results_of_an_earlier_version_are_read_and_shown(tmp_path):
    old = Results.load(RUN / "results.json")
    assert old.matrices["loss"].values == RAW["matrices"]["loss"]["values"]
    old.save(tmp_path / "results.json")
    assert Results.load(tmp_path) == old
    assert (tmp_path / "results.json").stat().st_size < (RUN / "results.json").stat().st_size
    shown = compare([RUN]).matrices("accuracy")[0]
    for row, values in enumerate(RAW["matrices"]["accuracy"]["values"]):
        assert [shown.cell(row, column).value for column in shown.columns] == values


def test_old_cells_are_paired_by_the_blocks_that_the_run_kept():
    found = Cell.load(set_path(RUN / "evaluation", 1, "first"), "first")
    assert found.fingerprint
    assert found.same_examples(Cell.load(set_path(RUN / "evaluation", 3, "first"), "third"))
    assert not found.same_examples(Cell.load(set_path(RUN / "evaluation", 1, "second"), "first"))
    both = compare([RUN, RUN])
    assert both.measure("bits_per_byte", "forgotten").paired
    assert both.measure("accuracy", "average").paired


def test_the_committed_cells_of_the_grid_say_the_same():
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


def test_every_metric_and_quantity_of_the_old_file_is_registered():
    assert set(RAW["matrices"]) <= set(METRICS)
    assert all(set(found) <= set(QUANTITIES) for found in RAW["summary"].values())
