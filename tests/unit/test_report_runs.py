import json
import math

import pytest
import report_fixture
from hypothesis import given, settings
from hypothesis import strategies as st

from everlearn.comparison.runs import clean, from_results, read_run
from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate, mean, number
from everlearn.evaluation.results import Results
from everlearn.evaluation.score_table import ScoreTable

finite = st.floats(-1e3, 1e3)
width = st.floats(0, 1e3)


@settings(deadline=None)
@given(finite, width, finite, width)
def test_the_difference_of_symmetric_intervals_adds_their_squares(a, half_a, b, half_b):
    difference = Estimate(a, a - half_a, a + half_a).minus(Estimate(b, b - half_b, b + half_b))
    assert difference.value == a - b
    low, high = difference.interval
    half = math.sqrt(half_a**2 + half_b**2)
    assert low == pytest.approx(a - b - half, abs=1e-9)
    assert high == pytest.approx(a - b + half, abs=1e-9)


def test_the_difference_keeps_skew():
    difference = Estimate(1.0, 0.9, 1.4).minus(Estimate(0.5, 0.2, 0.6))
    assert difference.low == pytest.approx(0.5 - math.sqrt(0.1**2 + 0.1**2))
    assert difference.high == pytest.approx(0.5 + math.sqrt(0.4**2 + 0.3**2))


def test_a_difference_without_an_interval_has_none():
    assert Estimate(1.0, 0.9, 1.1).minus(Estimate(0.5)) == Estimate(0.5)
    assert Estimate(1.0, 0.9, 1.1).minus(Estimate()) == Estimate()


def test_the_mean_of_independent_estimates():
    found = mean([Estimate(1.0, 0.7, 1.3), Estimate(3.0, 2.6, 3.4), Estimate()])
    assert found.value == 2.0
    assert found.low == pytest.approx(2 - math.hypot(0.3, 0.4) / 2)
    assert mean([Estimate(1.0), Estimate(3.0, 2.0, 4.0)]) == Estimate(2.0)
    assert mean([]) == Estimate()


@pytest.mark.parametrize(("low", "high", "sign"), [(0.1, 0.2, 1), (-0.2, -0.1, -1), (-0.1, 0.1, 0), (None, 0.1, None)])
def test_the_sign_is_that_of_the_whole_interval(low, high, sign):
    assert Estimate(0.0, low, high).sign == sign


@pytest.mark.parametrize("raw", [None, True, "1", float("nan"), float("inf"), [1]])
def test_what_is_no_finite_number_is_absent(raw):
    assert number(raw) is None
    assert Estimate.read({"value": raw}) == Estimate()


@settings(deadline=None)
@given(st.text(st.characters(categories=None), max_size=20))
def test_every_cleaned_value_can_be_written_as_utf8(text):
    found = clean({text: [text, {"x": text, "y": 1}], "none": None})
    json.dumps(found, ensure_ascii=False).encode("utf-8")
    assert found["none"] is None


def test_worse_is_positive_for_every_metric():
    cells = [["base", "a", 1.0, None, None], ["a", "a", 3.0, None, None]]
    raw = {"rows": ["base", "a"], "columns": ["a"], "cells": cells}
    assert ScoreTable.lenient("m", raw | {"higher_is_better": True}).worsening("a", 0, 1) == -2.0
    assert ScoreTable.lenient("m", raw | {"higher_is_better": False}).worsening("a", 0, 1) == 2.0


def test_a_domain_called_base_is_not_the_base_row():
    matrix = ScoreTable.lenient("m", {"rows": ["base", "x", "base"], "columns": ["x", "base", "general"], "cells": []})
    assert [matrix.own_stage(column) for column in matrix.columns] == [1, 2, None]
    assert matrix.cell(1, "x") == Estimate()


def test_the_fixture_is_what_everlearn_writes():
    found = report_fixture.results("plain", "Sequential", 0.1)
    assert from_results(Results.model_validate(found)).domains == report_fixture.DOMAINS


def test_a_run_with_nothing_but_results(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"matrices": {}}))
    run = read_run(tmp_path)
    assert (run.name, run.title, run.domains, run.log, run.recipe) == (tmp_path.name, tmp_path.name, [], [], None)


def test_half_a_line_of_the_log_is_counted_and_left_out(tmp_path):
    folder = report_fixture.write_run(tmp_path / "run", report_fixture.results("plain", "Sequential", 0.1), steps=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"stage": 1, "st')
    run = read_run(folder)
    assert (len(run.log), run.broken_lines) == (12, 1)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(RunError, match=r"has no results\.json"):
        read_run(tmp_path)
    with pytest.raises(RunError, match="nowhere is not a run that can be reported: there is no such folder"):
        read_run(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"matrices": 3}'])
def test_damaged_results_are_named(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(RunError, match="damaged"):
        read_run(tmp_path)
