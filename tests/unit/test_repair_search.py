"""The search for the largest step, and halves of held-out text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from everlearn.data.blocks import PackedBlocks
from everlearn.diagnostics.checkpoint_distance import Pair
from everlearn.diagnostics.pages.repair import said
from everlearn.diagnostics.repair import PRECISION, STEPS, Repair, largest_step, search_repair
from everlearn.errors import RecipeError
from everlearn.evaluation.estimate import Estimate
from everlearn.tasks.held_out import HeldOut

LINES = {
    "grows": lambda s: s**2,
    "falls at first": lambda s: s * (s - 0.5),
    "over a hill and back": lambda s: 0.3 * np.sin(np.pi * s) ** 2,
    "never": lambda s: -s,
    "at once": lambda s: 10.0 * (s > 0),
    "wall": lambda s: float(s > 0.33),
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("budget", [0.0, 0.02, 0.2])
def test_the_largest_step_within_the_budget(line, budget):
    asked: list[float] = []

    def lost(step):
        asked.append(step)
        return LINES[line](step)

    found = largest_step(lost, budget)
    assert LINES[line](found) <= budget
    fine = np.linspace(0, 1, 100_001)
    wanted = max(s for s in fine if LINES[line](s) <= budget)
    assert wanted - PRECISION <= found <= wanted + 1e-9
    assert len(asked) == len(set(asked)) <= STEPS + 4
    assert 0 < min(asked) <= max(asked) == 1


@pytest.mark.parametrize("count", [2, 3, 7, 16, 50, 257])
def test_halves_have_no_block_in_common_and_text_from_everywhere(count):
    ids = np.arange(count, dtype=np.int32)[:, None].repeat(4, 1)
    whole = HeldOut(PackedBlocks({"input_ids": ids}, seed=0), 3.0)
    halves = [whole.half(number).blocks.arrays["input_ids"][:, 0].tolist() for number in (0, 1)]
    assert sorted(halves[0] + halves[1]) == list(range(count))
    assert abs(len(halves[0]) - len(halves[1])) <= max(2, count / 8)
    if count >= 50:
        for each in halves:
            assert sum(a + 1 == b for a, b in itertools.pairwise(each)) > 0.6 * len(each), "in stretches"
            assert abs(np.mean(each) - (count - 1) / 2) < count / 10


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ((0.01, 0.005, 0.015), "The budget is kept there."),
        ((0.019, 0.01, 0.03), "The budget is kept there, by less than the error"),
        ((0.021, 0.01, 0.03), "The budget is not kept there, by less than the error"),
        ((0.05, 0.04, 0.06), "The budget is not kept there."),
    ],
)
def test_what_is_said_of_the_other_half(lost, says):
    found = Repair(
        "base", "a", "general", 0.02, False, 0.5, {1.0: Estimate(1.0)}, (8, 8), Estimate(0.3), Estimate(*lost)
    )
    assert says in said(found)
    assert found.kept == (lost[0] <= 0.02)
    assert "50.0 % is the largest step" in said(found)


@pytest.mark.parametrize(
    ("budget", "text", "says"),
    [(float("inf"), None, "`--budget` is inf"), (-1.0, None, "0 or more"), (0.1, "", "`--text` is empty")],
)
def test_what_is_no_budget_is_refused_before_anything_is_read(budget, text, says):
    with pytest.raises(RecipeError, match=says):
        search_repair(None, Pair(0, 1), budget, text=text)
