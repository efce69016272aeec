"""``everlearn sweep --methods scenarios``: A then B, A then both, both at once, apart, apart and averaged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_project import Project
from everlearn.errors import RecipeError
from everlearn.evaluation import text_cell
from everlearn.grid import load_results, read_orders
from everlearn.grid.arrangements import ALONE


def lines(path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_all_scenarios_learn_from_equally_many_tokens(everlearn: Project) -> None:
    everlearn.recipe["train"] |= {"max_steps": 2, "save_strategy": "no"}
    everlearn.recipe["train"].pop("save_steps")
    everlearn.recipe["evaluation"]["samples"] = 0
    shown = everlearn("sweep", "recipe.yaml", "--methods", "scenarios", "-q", "--json")
    assert shown.code == 0, shown.err
    cells = {cell.name: cell for cell in load_results(everlearn.folder / "sweep" / "first")}
    assert {name.split("-")[0] for name in cells} == {"none", "separate", "sequential", "cumulative", "pool", "merged"}
    tokens = {name: cell.tokens for name, cell in cells.items() if cell.grid.row != "none"}
    assert len(set(tokens.values())) == 1, tokens
    scores = {name: cell.matrices["bits_per_byte"] for name, cell in cells.items()}
    plain, both = (scores[f"{name}-order0-seed0"].values for name in ("sequential", "cumulative"))
    assert plain[1] == both[1], "the first domain is learnt in the same way"
    assert plain[2] != both[2]
    assert plain[0] == both[0], "scored on the same text"
    assert [cells[f"{name}-order0-seed0"].grid.old_data for name in ("sequential", "cumulative")] == [False, True]
    assert len({tuple(table.values[-1][table.columns.index(d)] for d in "ab") for table in scores.values()}) == 6
    alone, merged = (scores[f"{name}-seed0"].estimates() for name in ("separate", "merged"))
    learnt = [[table[ALONE, d].value for d in "ab"] for table in (alone, merged)]
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
