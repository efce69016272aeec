"""Score matrices and results.json."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from everlearn.errors import PluginError, RecipeError, RunError
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
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import QUANTITIES, Column, Quantity, Scores, register_quantity
from everlearn.evaluation.quantities import summarise as summary_of
from everlearn.evaluation.results import Summary
from everlearn.evaluation.score_table import ScoreTable

# -- Derived numbers: by hand, and as properties of random matrices ----------------------------------------------------


def scores(values, stages, higher=True, samples=None):
    values = np.asarray(values, float)
    samples = values[None].repeat(3, 0) if samples is None else samples
    columns = []
    for index, (name, stage) in enumerate(zip("abcdefgh", stages, strict=False)):
        rows = np.flatnonzero(~np.isnan(values[:, index]))  # what was not measured is not there
        columns.append(Column(name, stage, tuple(rows.tolist()), values[rows, index], samples[:, rows, index]))
    return columns, len(values) - 1, higher


def summarise(made):
    return summary_of(*made)


def point(summary):
    return {name: {column: found.value for column, found in part.items()} for name, part in summary.items()}


ACCURACY = [
    [0.50, 0.40, 0.30, 0.9],
    [0.80, 0.45, 0.20, 0.8],
    [0.85, 0.70, 0.35, 0.7],
    [0.60, 0.65, 0.90, 0.6],
]


def test_by_hand():
    found = point(summarise(scores(ACCURACY, [1, 2, 3, None])))
    expected = {
        "learnt": {"a": 0.3, "b": 0.3, "c": 0.6, "mean": 0.4},
        "forgotten": {"a": 0.2, "b": 0.05, "mean": 0.125},
        "gained": {"a": 0.1, "b": 0.25, "c": 0.6, "mean": 0.95 / 3},
        "forgotten_max": {"a": 0.25, "b": 0.05, "mean": 0.15},
        "backward_transfer": {"a": -0.2, "b": -0.05, "mean": -0.125},
        "forward_transfer": {"b": 0.05, "c": 0.05, "mean": 0.05},
        "forgetting_rate": {"mean": 0.125},
        "general_drift": {"d": 0.3},
        "average": {"mean": (0.6 + 0.65 + 0.9) / 3},
    }
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        assert found[name] == pytest.approx(part), name


def test_losses_have_the_same_sign():
    stages = [1, 2, 3, None]
    up, down = summarise(scores(ACCURACY, stages)), summarise(scores(-np.array(ACCURACY), stages, False))
    average = down.pop("average")
    assert average["mean"].value == pytest.approx(-up.pop("average")["mean"].value)
    for name, part in point(up).items():
        assert point(down)[name] == pytest.approx(part)


def test_two_tasks_of_one_domain_and_a_general_task():
    found = point(summarise(scores([[0.5, 0.5, 0.5], [0.7, 0.9, 0.4]], [1, 1, None])))
    assert found["learnt"] == pytest.approx({"a": 0.2, "b": 0.4, "mean": 0.3})
    assert found["general_drift"] == pytest.approx({"c": 0.1})
    assert found["forgotten"] == found["forgetting_rate"] == {}


@pytest.mark.parametrize("stages", [[1], [1, 2, 3], [None], [1, 2, None]])
def test_only_the_base_model(stages):
    found = summarise(scores([[1.0] * len(stages)], stages))
    assert all(part == {} for part in found.values())


def test_a_single_domain():
    found = point(summarise(scores([[0.5], [0.75]], [1])))
    assert found["learnt"] == {"a": 0.25, "mean": 0.25}
    assert found["average"] == {"mean": 0.75}
    assert found["gained"] == found["learnt"]
    assert not any(found[name] for name in found if name not in ("learnt", "gained", "average"))


def test_missing_cells_take_their_numbers_and_means_with_them():
    values = np.array(ACCURACY)
    values[1, 0] = values[2, 0] = np.nan  # the diagonal of `a` and the row after it
    values[0, 3] = np.nan
    found = point(summarise(scores(values, [1, 2, 3, None])))
    assert found["learnt"] == pytest.approx({"b": 0.3, "c": 0.6})
    assert found["forgotten"] == pytest.approx({"b": 0.05})
    assert found["forgotten_max"] == pytest.approx({"b": 0.05})
    assert found["forgetting_rate"] == {}
    assert found["general_drift"] == {}
    values = np.array(ACCURACY)
    values[2, 0] = np.nan  # only a row in between: the maximum over some of the rows would be another number
    found = point(summarise(scores(values, [1, 2, 3, None])))
    assert found["forgotten_max"] == pytest.approx({"b": 0.05})
    assert found["forgotten"].keys() == {"a", "b", "mean"}


def test_intervals_follow_the_samples_and_may_be_unknown():
    rng = np.random.default_rng(0)
    samples = np.array(ACCURACY)[None] + rng.normal(0, 0.01, (500, 4, 4))
    samples[:, :, 1] = np.nan  # a column with a single unit
    found = summarise(scores(ACCURACY, [1, 2, 3, None], samples=samples))
    a = found["forgotten"]["a"]
    drawn = samples[:, 1, 0] - samples[:, 3, 0]
    assert (a.low, a.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))
    assert found["forgotten"]["b"].low is None
    assert found["forgotten"]["mean"].low is None
    assert found["forgotten"]["mean"].value == pytest.approx(0.125)


MATRICES = st.integers(1, 5).flatmap(
    lambda t: arrays(float, (t + 1, t + 1), elements=st.floats(-100, 100, allow_subnormal=False))
)


@settings(max_examples=25, deadline=None)
@given(MATRICES, st.booleans())
def test_forgetting_is_positive_exactly_when_it_got_worse(values, higher):
    last = len(values) - 1
    found = summarise(scores(values, [*range(1, last + 1), None], higher))
    for column, j in zip("abcdefgh", range(1, last), strict=False):
        worse = values[last, j - 1] < values[j, j - 1] if higher else values[last, j - 1] > values[j, j - 1]
        assert (found["forgotten"][column].value > 0) == worse
        assert found["forgotten_max"][column].value >= max(0.0, found["forgotten"][column].value)
        assert found["backward_transfer"][column].value == -found["forgotten"][column].value
    name = "abcdefgh"[last]
    worse = values[last, -1] < values[0, -1] if higher else values[last, -1] > values[0, -1]
    assert (found["general_drift"][name].value > 0) == worse


@settings(max_examples=25, deadline=None)
@given(MATRICES)
def test_flipping_direction_and_sign_changes_nothing(values):
    stages = [*range(1, len(values)), None]
    up, down = summarise(scores(values, stages)), summarise(scores(-values, stages, False))
    for name in up.keys() - {"average"}:
        assert up[name] == down[name]


@settings(max_examples=25, deadline=None)
@given(MATRICES, st.randoms())
def test_the_order_of_columns_does_not_matter(values, random):
    stages = [*range(1, len(values)), None]
    order = list(range(len(stages)))
    random.shuffle(order)
    names = "abcdefgh"
    straight = point(summarise(scores(values, stages)))
    mixed = point(summarise(scores(values[:, order], [stages[i] for i in order])))
    for name, part in mixed.items():
        renamed = {column if column == "mean" else names[order[names.index(column)]]: x for column, x in part.items()}
        assert renamed == pytest.approx(straight[name], abs=1e-9)


def test_results_have_a_place_for_every_quantity():
    assert set(Summary.model_fields) == {key for key, quantity in QUANTITIES.items() if quantity.recorded}


# A quantity of one's own: what it can read, and that it is tried before there are scores


def test_a_slice_of_scores_has_the_rows_first_and_what_is_not_measured_is_no_number():
    values = np.array([[0.5, 0.75, 0.625], [0.1, 0.2, 0.3]])
    found = Scores((0, 1, 3), values)
    assert found[0:2].tolist() == [[0.5, 0.1], [0.75, 0.2]]
    assert np.isnan(found[2:4]).tolist() == [[True, True], [False, False]], "as single rows, and not left out"
    assert found[1:1].shape == (0, 2)
    for wrong in (slice(1, None), slice(-2, 3), slice(0, -1)):
        with pytest.raises(IndexError, match=r"scores\[1:stage\]"):
            found[wrong]


def of_ones_own(formula, applies=lambda stage, last: stage is not None and 2 <= stage <= last):
    return Quantity("dip", "Dip", False, "dipped less", "dipped more", "A dip.", applies, formula)


@pytest.mark.parametrize(
    ("formula", "says"),
    [
        (lambda u, j, last: u[0] - min(u[1:j + 1]), "its formula fails: ValueError: The truth value"),  # of samples
        (lambda u, j, last: u[0] - u[1:], r"its formula fails: IndexError: .* as in scores\[1:stage\]"),
        (lambda u, j, last: u["base"] - u[j] + None, "its formula fails: TypeError"),
        (lambda u, j, last: u[1:j], r"its formula returns \(1,\) for scores of shape \(\)"),
        (lambda u, j, last: u[-1] - u[0], "its formula gives no number, though every score is known"),
    ],
)  # fmt: skip
def test_a_quantity_that_cannot_be_computed_is_refused_and_named(formula, says):
    with pytest.raises(PluginError, match=f"The quantity 'dip' of `test_eval_results` cannot be computed: {says}"):
        register_quantity(of_ones_own(formula))
    assert not QUANTITIES.has("dip")


def test_what_can_be_computed_passes():
    of_ones_own(lambda u, j, last: u[0] - np.min(u[1:j], axis=0)).check()
    of_ones_own(lambda u, j, last: u[0] / 0, applies=lambda stage, last: False).check()
    for quantity in QUANTITIES.values():
        quantity.check()


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("key", ["learnt", "forgotten", "gained", "backward_transfer", "forgetting_rate"])
def test_three_moments_say_what_the_rows_say(key, higher):
    """The bench keeps base, learnt and final alone; its numbers are the same quantities."""
    quantity, scores = QUANTITIES[key], Scores((0, 3, 7), np.array([0.5, 0.75, 0.625]))
    moments = {"base": 0.5, "learnt": 0.75, "final": 0.625}
    assert quantity.at(moments, higher) == float(quantity.of(scores, 3, 7, higher))
    assert np.isnan(quantity.at({"base": 0.5}, higher))


# -- Cells and results on disk, and the whole way from cells to results ------------------------------------------------


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
    assert (np.array(matrix.dense("low")) < LOSSES).all()
    assert (np.array(matrix.dense("high")) > LOSSES).all()
    assert matrix.task_domains is None


def test_bytes_of_each_block_count_where_they_are_known_and_the_average_elsewhere():
    known = {"bytes": np.array([30, 10])}
    for properties, width in ((known, 40), (None, 20 * 4.0)):
        cell = text_cell(np.array([20.0, 40.0]), np.array([10, 10]), 4.0, given=properties)
        assert METRICS["bits_per_byte"].score(cell) == pytest.approx(60 / np.log(2) / width)


def test_cells_are_of_the_same_examples_unless_their_fingerprints_tell():
    def cell(mark: str):
        return text_cell(np.array([4.0]), np.array([2]), 3.0, mark=mark)

    assert cell("one").same_examples(cell("one"))
    assert cell("one").same_examples(cell(""))
    assert not cell("one").same_examples(cell("other"))


def test_sums_of_losses_are_kept_in_float64():
    cell = text_cell(*np.array([[4.0], [2.0]], np.float32), 3.0, *np.array([[3.0], [1.0]], np.float32))
    assert cell["nats"].dtype == cell["content_nats"].dtype == np.float64
    assert cell["items"].dtype == cell["content_items"].dtype == np.int64


def test_a_table_of_another_program_keeps_what_it_says_and_is_named_after_its_metric():
    raw = {"rows": ["base", "alone"], "columns": ["a", "b", "c"], "cells": [], "unit": "points", "title": "Points"}
    table = ScoreTable.lenient("some_points", raw)
    assert (table.title, table.unit, table.printed_unit) == ("Points", "points", "points")
    bare = ScoreTable.lenient("some_points", {})
    assert (bare.title, bare.unit, bare.rows, bare.columns) == ("Some points", "", [], [])


def test_where_rows_are_not_called_after_domains_the_table_says_when_each_was_learnt():
    raw = {"rows": ["base", "alone"], "columns": ["a", "b", "c"], "cells": [], "learnt_at": {"a": "alone", "b": None}}
    table = ScoreTable.lenient("loss", raw)
    assert [table.own_stage(column) for column in table.columns] == [1, 0, None]


def test_derived_numbers_and_the_pairing_of_their_intervals():
    loss = build().summary["loss"]
    assert loss.learnt["a"].value == pytest.approx(1.0)
    assert loss.forgotten["mean"].value == pytest.approx((0.6 + 0.3) / 2) == loss.forgetting_rate["mean"].value
    assert loss.general_drift["general"].value == pytest.approx(0.4)
    assert set(loss.general_drift) == {"general"}
    # Hard blocks are hard for every checkpoint: the difference is known far better than either loss.
    width = loss.forgotten["a"].high - loss.forgotten["a"].low
    matrix = build().matrices["loss"]
    assert width < 1e-9 < matrix.dense("high")[3][0] - matrix.dense("low")[3][0]


def test_intervals_do_not_depend_on_what_else_is_measured():
    assert build(2).matrices["loss"].dense("low") == build(4).matrices["loss"].dense("low")[:2]


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
    assert found.matrices["loss"].dense("low") == [[None], [None]]
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


def test_each_end_of_a_difference_has_the_distances_of_both_estimates():
    difference = Estimate(5.0, 4.0, 9.0).minus(Estimate(2.0, -1.0, 2.5))
    assert difference.value == 3.0
    assert difference.low == pytest.approx(3.0 - (1.0**2 + 0.5**2) ** 0.5)
    assert difference.high == pytest.approx(3.0 + (4.0**2 + 3.0**2) ** 0.5)


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
    assert "'u': 25.00 % of the test examples" in " ".join(found.notes)
    assert "at most 75.00 %" in " ".join(found.notes)
    assert "f1" not in build(tasks={(0, "t"): plain}, task_domains={"t": "a"}).matrices


def test_what_domains_belong_to_is_written_and_read(tmp_path):
    found = build_results(FACTS, ["a", "b"], groups={"a": "wiki"})
    found.save(tmp_path / "results.json")
    assert Results.load(tmp_path).groups == {"a": "wiki"}


def test_scores_too_large_for_a_number_have_no_difference_and_no_warning() -> None:
    """Perplexities of a model that was ruined."""
    infinite = dict.fromkeys(("base", "learnt", "final"), float("inf"))
    for quantity in QUANTITIES.values():
        if quantity.signed and quantity.applies(1, 2):
            value = quantity.at(infinite, higher_is_better=False)
            assert np.isnan(value) or "share" in quantity.key, quantity.key
