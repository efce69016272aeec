"""A method whose losses outweigh the training loss is named once in the notes of a run."""

from __future__ import annotations

import json

import pytest

from everlearn.methods import build
from everlearn.run.outweighing_losses import outweighing_losses

LINES = [
    {"domain": "b", "step": 2, "loss": 4.0, "mas/penalty": 40.0, "das/contrast": 0.5},
    {"domain": "b", "step": 4, "loss": 5.35, "mas/penalty": 190.0, "das/contrast": 0.5},
    {"domain": "c", "step": 2, "loss": 4.0, "mas/penalty": 90.0},
    {"domain": "c", "step": 2, "bits_per_byte": {"b": 2.0}},
]


def test_the_largest_is_named_with_the_option_to_lower():
    assert outweighing_losses(LINES, [build("mas"), build("das")]) == [
        "MAS added 190 to a training loss of 5.35 (step 4 of 'b'), so that little else counted. Lower `strength` (1) "
        "of `mas` by factors of ten."
    ]


@pytest.mark.parametrize("lines", [[], LINES[:1], [{"loss": 4.0, "step": 1, "domain": "b"}]])
def test_a_smaller_one_or_none_is_no_note(lines):
    assert outweighing_losses(lines, [build("mas"), build("sequential")]) == []


def test_results_and_page_have_it_once(everlearn):
    everlearn.recipe["method"] = {"name": "l2", "strength": 1e7}
    everlearn.recipe["train"] |= {"max_steps": 2, "learning_rate": 1e-2}
    assert everlearn("run", "recipe.yaml").code == 0
    notes = json.loads((everlearn.run_folder / "results.json").read_text())["notes"]
    assert sum("Lower `strength` (1e+07) of `l2`" in note for note in notes) == 1
    assert "so that little else counted" in (everlearn.run_folder / "report.html").read_text()
