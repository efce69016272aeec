"""Accuracy and macro-F1 against a slow reference, and their bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlearn.evaluation import METRICS, Cell, classification_cell, register_mean, resample


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


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_says_what_it_is(name):
    metric = METRICS[name]
    assert metric.name == name
    assert metric.title
    assert metric.unit
    assert metric.reads
