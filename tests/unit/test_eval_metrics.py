"""Metrics and their bootstrap, forgetting as studies count it, and intervals over runs, against slow references."""

from __future__ import annotations

import itertools
import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student
from scipy.stats import ttest_ind, ttest_rel

from everlearn.comparison.comparison import compare_runs
from everlearn.comparison.intervals import difference, over_runs
from everlearn.evaluation import (
    METRICS,
    Cell,
    Column,
    classification_cell,
    register_mean,
    resample,
    summarise,
    text_cell,
)
from everlearn.evaluation.metrics import STANDARDISED
from everlearn.evaluation.statistics import (
    draws,
    generator,
    percentiles,
)
from everlearn.evaluation.task import TaskConfig, register_kind
from everlearn.grid import summarise as summarise_grid
from everlearn.tasks.labelled import EndTask


def slow_macro_f1(truth, predictions, classes):
    scores = []
    for c in classes:
        pairs = list(zip(truth, predictions, strict=True))
        tp = sum(t == c and p == c for t, p in pairs)
        fp = sum(t != c and p == c for t, p in pairs)
        fn = sum(t == c and p != c for t, p in pairs)
        scores.append(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0)
    return sum(scores) / len(scores)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1), st.sets(st.integers(0, 5), min_size=1))
def test_against_the_slow_reference(pairs, classes):
    truth, predictions = zip(*pairs, strict=True)
    own = cell(truth, predictions, sorted(classes))
    assert METRICS["macro_f1"].score(own) == pytest.approx(slow_macro_f1(truth, predictions, classes), abs=1e-12)
    assert METRICS["accuracy"].score(own) == pytest.approx(sum(t == p for t, p in pairs) / len(pairs))


def test_a_class_nobody_has_counts_as_zero():
    assert METRICS["macro_f1"].score(cell([0, 0], [0, 0], (0, 1))) == 0.5


def cell(truth, predictions, classes=(0, 1)):
    predictions = np.atleast_2d(predictions)
    return classification_cell(np.asarray(truth), predictions, np.asarray(classes), tuple(range(len(predictions))))


def task_scores(cells, *, seed, resamples=2000):
    return resample(cells, [METRICS[name] for name in ("accuracy", "macro_f1", "f1")], seed=seed, resamples=resamples)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_values_are_means_over_seeds(seed):
    rng = np.random.default_rng(seed)
    truth, predictions = rng.integers(0, 3, 12), rng.integers(0, 3, (2, 12))
    found = task_scores([cell(truth, predictions, (0, 1, 2))], seed=0, resamples=10)
    assert found["accuracy"][0][0] == pytest.approx(np.mean(truth == predictions))
    assert found["macro_f1"][0][0] == pytest.approx(np.mean([slow_macro_f1(truth, p, range(3)) for p in predictions]))


def test_f1_is_what_the_task_asks_for():
    truth, guess = np.array([0, 0, 1, 5]), np.array([[0, 1, 1, 0]])  # nobody can predict label 5
    for kind, column in (("macro", "macro_f1"), ("micro", "accuracy")):
        found = task_scores([classification_cell(truth, guess, np.array([0, 1]), (0,), kind)], seed=0, resamples=20)
        np.testing.assert_array_equal(found["f1"][0], found[column][0])
        np.testing.assert_array_equal(found["f1"][1], found[column][1])
    assert found["accuracy"][0] == 0.5


def test_checkpoints_are_paired_over_examples_and_seeds():
    rng = np.random.default_rng(0)
    truth, predictions = rng.integers(0, 2, 50), rng.integers(0, 2, (3, 50))
    found = task_scores([cell(truth, predictions), cell(truth, predictions.copy())], seed=0)
    for values, samples in found.values():
        assert values[0] == values[1]
        np.testing.assert_array_equal(samples[:, 0], samples[:, 1])
        assert samples[:, 0].std() > 0


def test_seeds_add_to_the_spread():
    truth = np.arange(400) % 2
    good, bad = truth.copy(), truth.copy()
    good[:20] ^= 1
    bad[:140] ^= 1
    spread = {}
    for name, predictions in {"one": [good], "two": [good, bad]}.items():
        spread[name] = task_scores([cell(truth, predictions)], seed=0)["accuracy"][1].std()
    assert spread["two"] > 4 * spread["one"]


def test_one_example_and_nothing_at_all():
    values, samples = task_scores([cell([1], [1])], seed=0, resamples=4)["accuracy"]
    assert values == [1.0]
    assert np.isnan(samples).all()


def test_a_metric_is_a_mean_of_what_a_new_kind_leaves():
    """A new metric is one registration; it applies to every cell that has its outcome."""
    try:
        found = register_mean("politeness", "Politeness", "polite")
        answers = Cell("text", "t", "base", {"polite": np.tile([1.0, 0.0, 1.0, 1.0], 10)})
        assert found.applies(answers)
        assert not found.applies(cell([1], [1]))
        assert found.score(answers) == 0.75
        drawn = resample([answers], [found], seed=0, resamples=400)["politeness"].samples
        np.testing.assert_allclose(drawn * 40, np.round(drawn * 40), atol=1e-9)
        assert drawn.mean() == pytest.approx(0.75, abs=0.05)
    finally:
        del METRICS["politeness"]


def test_a_kind_of_task_and_its_options_are_known_by_its_name(monkeypatch):
    class Known(dict):
        add = dict.__setitem__

    class Polite:
        kind = "polite"

    kinds, configs = Known(), Known()
    monkeypatch.setattr("everlearn.evaluation.task.TASK_KINDS", kinds)
    monkeypatch.setattr("everlearn.evaluation.task.CONFIGS", configs)
    assert register_kind()(Polite) is Polite
    assert (kinds, configs) == ({"polite": Polite}, {})
    assert register_kind(TaskConfig)(Polite) is Polite
    assert (kinds, configs) == ({"polite": Polite}, {"polite": TaskConfig})


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_says_what_it_is(name):
    metric = METRICS[name]
    assert metric.name == name
    assert metric.title
    assert metric.unit
    assert metric.reads or metric.knows or metric.named, "it applies to some cells only"


def test_draws_count_with_replacement_over_several_chunks():
    parts = list(draws(3000, 2000, generator(0)))
    assert len(parts) > 1
    assert sum(len(part) for part in parts) == 2000
    assert all((part.sum(1) == 3000).all() for part in parts)


def ratios(above: np.ndarray, below: np.ndarray, seed: object, resamples: int = 2000) -> np.ndarray:
    """Bootstrap samples of the mean loss of each row, [resamples, rows]."""
    cells = [text_cell(*each, 4.0) for each in zip(np.atleast_2d(above), np.atleast_2d(below), strict=True)]
    return resample(cells, [METRICS["loss"]], seed=seed, resamples=resamples)["loss"].samples


def test_ratio_is_what_explicit_resampling_gives():
    rng = np.random.default_rng(0)
    above, below = rng.random((2, 37)), rng.integers(1, 9, (2, 37))
    got = ratios(above, below, seed="x", resamples=50)
    weights = np.concatenate(list(draws(37, 50, generator("bootstrap", "x")))).astype(int)
    for b, row in itertools.product(range(50), range(2)):
        drawn = np.repeat(np.arange(37), weights[b])
        assert got[b, row] == pytest.approx(above[row, drawn].sum() / below[row, drawn].sum(), rel=1e-12)


def test_rows_are_paired_and_seeds_reproduce():
    nats = np.random.default_rng(1).normal(5, 2, 40)
    one = np.ones((2, 40))
    samples = ratios(np.stack([nats, nats + 0.25]), one, seed=3)
    np.testing.assert_allclose(samples[:, 1] - samples[:, 0], 0.25, rtol=1e-9)
    np.testing.assert_array_equal(samples, ratios(np.stack([nats, nats + 0.25]), one, seed=3))
    assert not np.array_equal(samples, ratios(np.stack([nats, nats + 0.25]), one, seed=4))


def test_one_unit_has_no_interval():
    assert np.isnan(ratios(np.array([3.0]), np.array([2.0]), seed=0, resamples=5)).all()


def test_coverage_of_the_percentile_interval():
    rng = np.random.default_rng(7)
    hits, trials = 0, 200
    for trial in range(trials):
        data = rng.exponential(2.0, 60)
        low, high = percentiles(ratios(data, np.ones(60), seed=trial, resamples=400))
        hits += bool(low[0] <= 2.0 <= high[0])
    assert 0.88 <= hits / trials <= 0.985


HAND = ("share_forgotten", "share_forgotten_per_step", "share_forgotten_clipped", "share_forgotten_clipped_per_step")


def released(m: list[list[float]], clip: bool) -> tuple[float, float]:
    """Total and per-step forgetting of [stage][task] standardised scores, written from the study's definition."""
    tasks = len(m)
    total = steps = 0.0
    for i in range(tasks - 1):
        own, end = m[i][i], m[tasks - 1][i]
        if clip:
            own, end = min(max(own, 0.0), 1.0), min(max(end, 0.0), 1.0)
            f = 1.0 if own == 0 else (own - end) / own
        else:
            f = (own - end) / (1.0 if own == 0 else abs(own))
        total += f
        steps += f / (tasks - 1 - i)
    return total, steps / (tasks - 1)


@pytest.mark.parametrize(
    "m",
    [
        [[0.8, 0, 0], [0.5, 0.9, 0], [0.2, 0.6, 1.1]],
        [[0.0, 0, 0], [0.1, -0.2, 0], [0.3, 0.4, 0.5]],
        [[1.2, 0, 0, 0], [1.1, 0.4, 0, 0], [0.9, 0.3, 0.7, 0], [-0.5, 0.1, 0.8, 0.2]],
        [[0.5, 0], [0.25, 0.5]],
    ],
)
def test_both_conventions_are_those_of_the_study(m):
    tasks = len(m)
    columns = [
        Column(
            str(i), i + 1, tuple(range(tasks + 1)), np.array([0.0, *(row[i] for row in m)]), np.zeros((1, tasks + 1))
        )
        for i in range(tasks)
    ]
    found = summarise(columns, tasks, True, STANDARDISED)
    for clip, names in ((False, HAND[:2]), (True, HAND[2:])):
        total, per_step = released(m, clip)
        assert found[names[0]]["mean"].value * (tasks - 1) == pytest.approx(total)
        assert found[names[1]]["mean"].value == pytest.approx(per_step)
        assert found[names[1]].keys() == {"mean"}
    assert not set(HAND) & set(summarise(columns, tasks, True, "accuracy")), "of standardised accuracy alone"


def test_accuracies_are_standardised_by_what_is_known_of_the_task():
    truth, said = np.array([0, 0, 0, 1]), np.array([[0, 0, 1, 1], [0, 0, 0, 0]])
    cell = classification_cell(truth, said, np.arange(2), (1, 2))
    assert not METRICS[STANDARDISED].applies(cell)
    cell.facts["state_of_the_art"] = 0.95
    assert METRICS[STANDARDISED].scores(cell).tolist() == [0, 0], "three of four are the most frequent label"
    cell.facts["majority"] = 0.5
    assert METRICS[STANDARDISED].scores(cell) == pytest.approx([0.25 / 0.45] * 2)


def test_what_is_not_given_leaves_cells_as_they_were():
    task = EndTask(name="t", train="a", test="b")
    assert task.scale == {}
    assert EndTask(name="t", train="a", test="b", state_of_the_art=0.955, majority=0.5).scale == {
        "majority": 0.5,
        "state_of_the_art": 0.955,
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"majority": 0.5}, "`majority` without `state_of_the_art`"),
        (
            {"majority": 0.9, "state_of_the_art": 0.8},
            r"`majority` is 0.9, which must be below `state_of_the_art` \(0.8\)",
        ),
    ],
)
def test_what_cannot_be_standardised_is_said(given, says):
    with pytest.raises(ValueError, match=says):
        EndTask(name="t", train="a", test="b", **given)


ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import one_engine  # noqa: E402

Runs = dict[int, float]
"""Seed → what was learnt."""
CASES = one_engine.cases()


def test_there_are_twenty_cases() -> None:
    assert len(CASES) == 20


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_the_report_and_the_bench_give_one_interval(ours: Runs, theirs: Runs) -> None:
    """Of the same files: a grid's cell is a run."""
    runs = [*one_engine.runs_of("sequential", theirs), *one_engine.runs_of("das", ours)]
    plain, das = summarise_grid(runs)
    measure = compare_runs(runs).measure("bits_per_byte", "learnt")
    assert measure is not None
    same(das.numbers["bits_learnt"], measure.estimates[1])
    same(plain.numbers["bits_learnt"], measure.estimates[0])
    same(das.differences["bits_learnt"].estimate, measure.difference(1))
    same(das.differences["bits_learnt"].estimate, measure.column("a").difference(1))


def same(one: Any, other: Any) -> None:
    assert (one.interval is None) == (other.interval is None)
    for a, b in zip((one.value, *(one.interval or ())), (other.value, *(other.interval or ())), strict=True):
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)


def test_the_page_of_the_twenty_cases_is_what_its_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = one_engine.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(one_engine, "PAGE", tmp_path / "page.md")
    one_engine.main()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == kept
    assert "20 of the twenty say the same on both pages now." in kept


@pytest.mark.parametrize(("ours", "theirs"), CASES)
def test_the_interval_is_students(ours: Runs, theirs: Runs) -> None:
    found = difference(ours, theirs)
    pairs = [seed for seed in ours if seed in theirs]
    if len(pairs) > 1:
        assert found.pairs == len(pairs)
        equal = found.p_value in (0, 1)  # up to rounding, of which scipy makes an interval
        expected = None if equal else ttest_rel([ours[s] for s in pairs], [theirs[s] for s in pairs])
    elif len(ours) + len(theirs) > 2:
        assert found.pairs == 0
        expected = ttest_ind([*ours.values()], [*theirs.values()])
    else:
        assert (found.estimate.interval, found.p_value, found.pairs) == (None, None, 1)
        return
    assert found.estimate.interval is not None
    low, high = found.estimate.interval
    if expected is not None:
        interval = expected.confidence_interval(0.95)
        assert (low, high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.p_value is not None
    assert (found.p_value < 0.05) == (not low <= 0 <= high)


def test_two_runs_say_little() -> None:
    """The case of the issue: a bootstrap over two runs gave [0.10, 0.14]."""
    assert over_runs([0.10, 0.14]).interval == pytest.approx((-0.134, 0.374), abs=5e-4)
    assert over_runs([0.1]).interval is None
    assert over_runs([0.3, 0.1 + 0.2]).interval == (0.3, 0.3) or over_runs([0.3, 0.1 + 0.2]).low == pytest.approx(0.3)
    with pytest.raises(ValueError, match="at least one run"):
        over_runs([])
    with pytest.raises(ValueError, match="each side"):
        difference({}, {0: 1.0})


@pytest.mark.parametrize("runs", range(2, 10))
def test_the_interval_covers_what_it_says(runs: int) -> None:
    """Of 4,000 draws without any difference 95 % cover it, to three standard deviations of that count."""
    rng = np.random.default_rng(runs)
    draws = rng.normal(0, 1, (4000, runs))
    error = draws.std(1, ddof=1) / np.sqrt(runs)
    reach = student.ppf(0.975, runs - 1) * error
    assert over_runs(draws[0]).interval == pytest.approx((draws[0].mean() - reach[0], draws[0].mean() + reach[0]))
    assert 0.94 <= float(np.mean(np.abs(draws.mean(1)) <= reach)) <= 0.96


def test_the_simulation_is_what_the_page_says() -> None:
    """docs/results/intervals.md is what benchmarks/interval_coverage.py wrote, and its coverage is 93 to 97 %."""
    file = ROOT / "docs" / "results" / "intervals.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    rows: list[Mapping[str, Any]] = found["rows"]
    assert [row["runs"] for row in rows] == list(range(2, 10))
    for row in rows:
        for name in ("mean", "pairs", "one against", "p below 0.05"):
            share = 1 - row[name] if name == "p below 0.05" else row[name]
            assert 0.93 <= share <= 0.97, (row["runs"], name)
    script = runpy.run_path(str(ROOT / "benchmarks" / "interval_coverage.py"))
    assert script["page"](found) == (ROOT / "docs" / "results" / "intervals.md").read_text(encoding="utf-8")
    fresh = script["coverage"](3, 200)
    assert fresh["mean"] == pytest.approx(rows[1]["mean"], abs=0.06)
    assert fresh["bootstrap"] < 0.9
