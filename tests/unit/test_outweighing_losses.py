"""A method whose losses outweigh the training loss is named once in the notes of a run."""

from __future__ import annotations

import json

import pytest

from everlearn.methods import build
from everlearn.run.outweighing_losses import outweighing_losses

LINES = [
    {"loss": 4.0, "mas/penalty": 39.0, "das/contrast": 0.5},
    {"loss": 5.35, "mas/penalty": 190.0, "das/contrast": 0.5},
    {"loss": None, "mas/penalty": 1e9},
    {"bits_per_byte": {"b": 2.0}},
]


def test_the_method_is_named_with_the_option_to_lower():
    assert outweighing_losses(LINES, [build("mas"), build("das")]) == [
        "MAS added more than 10 times the training loss to it, so that little else counted. Lower `strength` (1) of "
        "`mas` by factors of ten."
    ]
    assert "more than 100 times" in outweighing_losses([{"loss": 0.5, "mas/penalty": 420.0}], [build("mas")])[0]


@pytest.mark.parametrize("lines", [[], LINES[:1], [{"loss": 4.0}]])
def test_a_smaller_one_or_none_is_no_note(lines):
    assert outweighing_losses(lines, [build("mas"), build("sequential")]) == []


def test_results_and_page_have_it_once(everlearn):
    everlearn.recipe["method"] = {"name": "l2", "strength": 1e7}
    everlearn.recipe["train"] |= {"max_steps": 2, "learning_rate": 1e-2}
    assert everlearn("run", "recipe.yaml").code == 0
    notes = json.loads((everlearn.run_folder / "results.json").read_text())["notes"]
    assert sum("Lower `strength` (1e+07) of `l2`" in note for note in notes) == 1
    assert "so that little else counted" in (everlearn.run_folder / "report.html").read_text()
