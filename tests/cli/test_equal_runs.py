"""Runs of which one writes down what is a default, or what has no effect, are runs of one model and one text."""

from __future__ import annotations

import json

import pytest

from cli_project import Project

LONGEST = 128
"""Tokens that the tiny models of a project read: what `data.block_size` is when a recipe does not set it."""


@pytest.mark.parametrize(
    ("model", "explicit"),
    [
        (
            "roberta",
            {"data": {"block_size": LONGEST, "isolate_documents": False, "max_leaked": 0.9, "mask_probability": 0.15}},
        ),
        ("llama", {"data": {"isolate_documents": True, "mask_probability": 0.3}, "evaluation": {"end_task_seeds": 5}}),
    ],
)
def test_what_is_written_down_and_has_no_effect_changes_no_verdict(
    everlearn: Project, model: str, explicit: dict[str, dict[str, object]]
) -> None:
    everlearn.recipe |= {"model": str(everlearn.models / model), "train": {"max_steps": 1}}
    everlearn.recipe["data"].pop("block_size")
    everlearn.recipe["evaluation"] = {"blocks": 4}
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    for group, keys in explicit.items():
        everlearn.recipe[group] |= keys
    everlearn.recipe["run"]["name"] = "second"
    everlearn.recipe["model"] = {"path": everlearn.recipe["model"], "tokenizer": everlearn.recipe["model"]}
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    report = json.loads(everlearn("report", "runs/first", "runs/second", "--json").out)
    said = " ".join(report["verdict"])
    assert "not of one model" not in said, said
    assert "did not see and spend the same" not in said
    assert "differ in" not in said
    everlearn.recipe["data"]["block_size"] = 32
    everlearn.recipe["run"]["name"] = "third"
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    said = " ".join(json.loads(everlearn("report", "runs/first", "runs/third", "--json").out)["verdict"])
    assert "data.block_size" in said
