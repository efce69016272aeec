"""``everlearn sweep --methods scenarios``: A then B, A then both, both at once, apart, apart and averaged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_project import Project
from everlearn.errors import RecipeError
from everlearn.evaluation import text_cell
from everlearn.grid import read_orders


def lines(path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_all_scenarios_learn_from_equally_many_tokens(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"max_steps": 2, "save_strategy": "no"}
    everlearn.recipe["train"].pop("save_steps")
    everlearn.recipe["evaluation"]["samples"] = 0
    shown = everlearn("sweep", "recipe.yaml", "--methods", "scenarios", "-q", "--json")
    assert shown.code == 0, shown.err
    cells = {path.stem: json.loads(path.read_text()) for path in (everlearn.folder / "sweep" / "first").glob("*.json")}
    assert {name.split("-")[0] for name in cells} == {"none", "separate", "sequential", "cumulative", "pool", "merged"}
    tokens = {name: cell["tokens"] for name, cell in cells.items() if cell["entry"] != "none"}
    assert len(set(tokens.values())) == 1, tokens
    plain, both = cells["sequential-order0-seed0"], cells["cumulative-order0-seed0"]
    assert plain["matrix"]["values"][1] == both["matrix"]["values"][1], "the first domain is learnt in the same way"
    assert plain["matrix"]["values"][2] != both["matrix"]["values"][2]
    assert plain["matrix"]["values"][0] == both["matrix"]["values"][0], "scored on the same text"
    assert (plain["old_data"], both["old_data"]) == (False, True)
    final = {name: [cell["bits_per_byte"][d]["final"] for d in "ab"] for name, cell in cells.items()}
    assert len({tuple(each) for each in final.values()}) == 6
    alone, merged = cells["separate-seed0"], cells["merged-seed0"]
    learnt = [{d: cell["bits_per_byte"][d]["learnt"] for d in "ab"} for cell in (alone, merged)]
    assert learnt[0] == learnt[1], "what is averaged are the models of one domain each"

    runs = everlearn.folder / "runs" / "sweep-first"
    (corpus,) = runs.glob("pool-corpus-*/documents.jsonl")
    held_out = lines(runs / "held-out-b" / "documents.jsonl")
    files = lines(everlearn.folder / "a.jsonl") + lines(everlearn.folder / "b.jsonl")
    assert set(lines(corpus)) < set(files)
    assert not set(held_out) & set(lines(corpus))
    assert set(held_out) < set(lines(everlearn.folder / "b.jsonl"))


@pytest.fixture
def measured(tmp_path):
    """A run that has measured the base model on three domains, and one of them alone."""
    for place, bits in {
        ("stage-00", "a"): 2.0,
        ("stage-00", "b"): 3.0,
        ("stage-00", "c"): 1.0,
        ("alone", "a"): 1.0,
    }.items():
        folder, name = place
        cell = text_cell(np.array([bits, bits]), np.array([1, 1]), 1.0, task=name, mark="x")
        cell.save(tmp_path / "evaluation" / folder / f"{name}.safetensors")
    return tmp_path


def test_orders_by_difficulty(measured) -> None:
    assert read_orders(f"easy-first:{measured}", "abc") == [("c", "a", "b")]
    assert read_orders(f"hard-first:{measured};given", "abc") == [("b", "a", "c"), ("a", "b", "c")]
    assert read_orders(f"easy-first-alone:{measured}", "a") == [("a",)]
    for text, says in (
        (f"easy-first-alone:{measured}", "'b' is.*`evaluation.alone: true`"),
        ("easy-first:", "has not measured how difficult 'a' is"),
        ("easy-frist:x", "easy-first:RUN"),
    ):
        with pytest.raises(RecipeError, match=says):
            read_orders(text, "abc")
