"""Cells and results on disk, and the whole way from cells to results."""

from __future__ import annotations

import json

import numpy as np
import pytest

from everlearn.errors import RecipeError, RunError
from everlearn.evaluation import (
    METRICS,
    Cell,
    MethodUsed,
    Results,
    RunFacts,
    Share,
    Spent,
    StageCost,
    build_results,
    classification_cell,
    set_path,
    task_path,
    text_cell,
)

FACTS = RunFacts(
    run="r", methods=[MethodUsed(name="das", title="DAS", options={"x": 1})], objective="masked", model="m", seed=3
)
SETS = ["a", "b", "c", "general"]
LOSSES = np.array([[3.0, 4.0, 5.0, 2.0], [2.0, 3.9, 4.8, 2.1], [2.2, 3.0, 4.9, 2.3], [2.6, 3.3, 2.5, 2.4]])


def loss_cells(rows=4, blocks=30, spread=0.3):
    rng = np.random.default_rng(0)
    items = rng.integers(10, 20, blocks)
    cells = {}
    for column, name in enumerate(SETS):
        noise = rng.normal(0, spread, blocks)  # the same for every checkpoint: some blocks are hard
        noise -= (noise * items).sum() / items.sum()
        for row in range(rows):
            cells[row, name] = text_cell((LOSSES[row, column] + noise) * items, items, 4.0)
    return cells


def task_cell(correct, n=20, seeds=2):
    truth = np.arange(n) % 2
    predictions = np.tile(truth, (seeds, 1))
    predictions[:, correct:] ^= 1
    return classification_cell(truth, predictions, np.array([0, 1]), tuple(range(seeds)))


def build(rows=4, **options):
    return build_results(FACTS, ["a", "b", "c"], ["general"], loss_cells(rows), resamples=200, **options)


def test_the_three_loss_metrics():
    found = build()
    assert list(found.matrices) == ["bits_per_byte", "loss", "perplexity"]
    np.testing.assert_allclose(found.matrices["loss"].values, LOSSES, rtol=1e-12)
    np.testing.assert_allclose(found.matrices["perplexity"].values, np.exp(LOSSES), rtol=1e-12)
    np.testing.assert_allclose(found.matrices["bits_per_byte"].values, LOSSES / np.log(2) / 4, rtol=1e-12)
    matrix = found.matrices["loss"]
    assert matrix.rows == ["base", "a", "b", "c"]
    assert matrix.columns == SETS
    assert (np.array(matrix.low) < LOSSES).all()
    assert (np.array(matrix.high) > LOSSES).all()
    assert matrix.task_domains is None


def test_derived_numbers_and_the_pairing_of_their_intervals():
    loss = build().summary["loss"]
    assert loss.learnt["a"].value == pytest.approx(1.0)
    assert loss.forgotten["mean"].value == pytest.approx((0.6 + 0.3) / 2) == loss.forgetting_rate["mean"].value
    assert loss.general_drift["general"].value == pytest.approx(0.4)
    assert set(loss.general_drift) == {"general"}
    # Hard blocks are hard for every checkpoint: the difference is known far better than either loss.
    width = loss.forgotten["a"].high - loss.forgotten["a"].low
    matrix = build().matrices["loss"]
    assert width < 1e-9 < matrix.high[3][0] - matrix.low[3][0]


def test_intervals_do_not_depend_on_what_else_is_measured():
    assert build(2).matrices["loss"].low == build(4).matrices["loss"].low[:2]


def test_models_of_single_domains():
    alone = {"b": text_cell(np.array([20.0, 40.0]), np.array([10, 10]), 4.0)}
    assert build(alone=alone).alone == {
        "bits_per_byte": {"b": pytest.approx(3 / np.log(2) / 4)},
        "loss": {"b": pytest.approx(3)},
        "perplexity": {"b": pytest.approx(np.exp(3))},
    }


def test_end_tasks():
    tasks = {(0, "t"): task_cell(10), (1, "t"): task_cell(18), (3, "t"): task_cell(14), (0, "u"): task_cell(20)}
    found = build(tasks=tasks, task_domains={"t": "a", "u": None})
    matrix = found.matrices["accuracy"]
    assert matrix.task_domains == {"t": "a", "u": None}
    assert matrix.higher_is_better
    assert [row[0] for row in matrix.values] == [0.5, 0.9, None, 0.7]
    assert [row[1] for row in matrix.values] == [1.0, None, None, None]
    summary = found.summary["accuracy"]
    assert summary.learnt["t"].value == pytest.approx(0.4)
    assert summary.forgetting_rate["mean"].value == pytest.approx(0.2)
    assert summary.forgotten["t"].low < 0.2 < summary.forgotten["t"].high
    assert summary.general_drift == {}
    assert found.notes == []


def test_one_seed_is_said():
    tasks = {(0, "t"): task_cell(10, seeds=1)}
    assert "one seed" in build(tasks=tasks, task_domains={"t": None}).notes[0]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_partial_runs(rows, tmp_path):
    found = build(rows)
    assert found.matrices["loss"].rows == ["base", "a", "b"][:rows]
    found.save(tmp_path / "results.json")
    assert Results.load(tmp_path) == found


def test_nothing_measured_and_a_single_block():
    assert build_results(FACTS, ["a"]).matrices == {}
    cell = text_cell(np.array([4.0]), np.array([2]), 3.0)
    found = build_results(FACTS, ["a"], [], {(0, "a"): cell, (1, "a"): cell})
    assert found.matrices["loss"].values == [[2.0], [2.0]]
    assert found.matrices["loss"].low == [[None], [None]]
    assert found.summary["loss"].learnt["a"].low is None


def test_an_astronomical_loss_is_null_not_a_crash(tmp_path):
    cells = {(row, "a"): text_cell(np.full(5, 5000.0), np.ones(5, int), 3.0) for row in range(2)}
    found = build_results(FACTS, ["a"], [], cells, resamples=20)
    assert found.matrices["perplexity"].values == [[None], [None]]
    assert found.summary["perplexity"].learnt == {}
    found.save(tmp_path / "results.json")


def test_json_round_trip_and_names(tmp_path):
    cost = Spent(seconds=1.5, stages=[StageCost(domain="a", seconds=1, tokens=2, steps=3, tokens_per_second=2)])
    share = Share(stage=1, domain="a", source="replay", asked=0.1, realised=0.0998, tokens=12345)
    found = build(cost=cost, mixture=[share], notes=["Worth reading."])
    path = tmp_path / "results.json"
    found.save(path)
    assert Results.load(path) == Results.load(tmp_path) == found
    raw = json.loads(path.read_text())
    assert list(raw) == [
        "everlearn", "run", "methods", "status", "objective", "model", "seed", "domains", "general",
        "groups", "effective", "leaked",
        "matrices", "summary", "alone", "cost", "mixture", "notes",
    ]  # fmt: skip
    assert set(raw["summary"]["loss"]) == {
        "learnt", "forgotten", "gained", "forgotten_max", "backward_transfer", "forward_transfer", "forgetting_rate",
        "general_drift", "average",
    }  # fmt: skip
    assert set(raw["summary"]["loss"]["learnt"]["a"]) == {"value", "low", "high"}


def test_same_cells_same_file(tmp_path):
    build().save(tmp_path / "a.json")
    build().save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_damaged_results_are_named(tmp_path):
    path = tmp_path / "results.json"
    with pytest.raises(RunError, match=r"results\.json is missing"):
        Results.load(path)
    build().save(path)
    path.write_text(path.read_text()[:100])
    with pytest.raises(RunError, match="damaged"):
        Results.load(path)
    (tmp_path / "seal.json").unlink()
    path.write_text(json.dumps({"everlearn": "9.9", "future": 1}))
    with pytest.raises(RunError, match=r"everlearn 9\.9"):
        Results.load(path)
    path.write_text("[]")
    with pytest.raises(RunError, match="cannot be used"):
        Results.load(path)


def test_cells_on_disk(tmp_path):
    loss, task = loss_cells()[1, "a"], task_cell(7)
    loss.save(set_path(tmp_path, 1, "a"))
    task.save(task_path(tmp_path, 2, "t"))
    assert (tmp_path / "stage-01" / "a.safetensors").is_file()
    assert (tmp_path / "stage-02" / "tasks" / "t.safetensors").is_file()
    again = Cell.load(set_path(tmp_path, 1, "a"))
    np.testing.assert_array_equal(again["nats"], loss["nats"])
    np.testing.assert_array_equal(again["items"], loss["items"])
    assert again.facts == {"bytes_per_token": 4.0}
    assert METRICS["loss"].score(again) == METRICS["loss"].score(loss)
    assert METRICS["perplexity"].score(again) == pytest.approx(np.exp(2.0))
    other = Cell.load(task_path(tmp_path, 2, "t"))
    np.testing.assert_array_equal(other["predictions"], task["predictions"])
    assert other.seeds == (0, 1)
    assert other.same_examples(task)
    assert not other.same_examples(task_cell(7, n=21))
    task_path(tmp_path, 2, "t").write_bytes(b"broken")
    with pytest.raises(RunError, match=r"t\.safetensors is damaged"):
        Cell.load(task_path(tmp_path, 2, "t"))
    with pytest.raises(RunError, match=r"b\.safetensors is missing"):
        Cell.load(set_path(tmp_path, 1, "b"))


def test_what_cannot_be_compared_is_refused():
    cells = loss_cells()
    cells[2, "a"] = text_cell(np.ones(5), np.ones(5, int), 4.0)
    with pytest.raises(RunError, match="different data after 2 domains"):
        build_results(FACTS, ["a", "b", "c"], ["general"], cells)
    with pytest.raises(RunError, match="'x' after 0"):
        build_results(FACTS, ["a"], [], {(0, "x"): cells[0, "a"]})
    with pytest.raises(RunError, match="after 2 domains"):
        build_results(FACTS, ["a"], [], {(2, "a"): cells[0, "a"]})
    with pytest.raises(RecipeError, match="used twice"):
        build_results(FACTS, ["a"], ["a"])
    with pytest.raises(RecipeError, match="column of means"):
        build_results(FACTS, ["mean"])
    with pytest.raises(RecipeError, match="not in `domains`"):
        build_results(FACTS, ["a"], task_domains={"t": "z"})


def test_micro_f1_has_a_table_of_its_own_and_a_ceiling_is_told():
    truth = np.array([0, 1, 2, 1])  # no training example has label 2
    plain, special = (
        task_cell(15),
        classification_cell(truth, np.array([[0, 1, 0, 0]]), np.array([0, 1]), (0,), "micro"),
    )
    found = build(tasks={(0, "t"): plain, (0, "u"): special}, task_domains={"t": "a", "u": "b"})
    values = {metric: found.matrices[metric].values[0] for metric in ("accuracy", "macro_f1", "f1")}
    assert values["f1"] == [values["macro_f1"][0], values["accuracy"][1]]
    assert "micro-F1 (equal to accuracy) for end task 'u'" in " ".join(found.notes)
    assert "'u': 25.00% of the test examples" in " ".join(found.notes)
    assert "at most 75.00%" in " ".join(found.notes)
    assert "f1" not in build(tasks={(0, "t"): plain}, task_domains={"t": "a"}).matrices


def test_what_domains_belong_to_is_written_and_read(tmp_path):
    found = build_results(FACTS, ["a", "b"], groups={"a": "wiki"})
    found.save(tmp_path / "results.json")
    assert Results.load(tmp_path).groups == {"a": "wiki"}
