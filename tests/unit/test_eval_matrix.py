"""Derived numbers: by hand, and as properties of random matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from everlearn.evaluation.quantities import QUANTITIES, Column, Scores
from everlearn.evaluation.quantities import summarise as summary_of
from everlearn.evaluation.results import Summary


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


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("key", ["learnt", "forgotten", "gained", "backward_transfer", "forgetting_rate"])
def test_three_moments_say_what_the_rows_say(key, higher):
    """The bench keeps base, learnt and final alone; its numbers are the same quantities."""
    quantity, scores = QUANTITIES[key], Scores((0, 3, 7), np.array([0.5, 0.75, 0.625]))
    moments = {"base": 0.5, "learnt": 0.75, "final": 0.625}
    assert quantity.at(moments, higher) == float(quantity.of(scores, 3, 7, higher))
    assert np.isnan(quantity.at({"base": 0.5}, higher))
