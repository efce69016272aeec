"""Forgetting as the study of LSTM and CNN counts it, against its two conventions written down by hand."""

from __future__ import annotations

import numpy as np
import pytest

from everlearn.evaluation import METRICS, Column, classification_cell, summarise
from everlearn.evaluation.metrics import STANDARDISED
from everlearn.tasks.labelled import EndTask

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
