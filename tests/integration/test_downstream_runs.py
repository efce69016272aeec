"""What `evaluation` and `end_tasks` ask of a run's checkpoints, before the first domain and after each one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import small_runs
import yaml

import tiny
from everlearn.config.recipe import load
from everlearn.errors import ModelError, RecipeError
from everlearn.evaluation import Cell, Results
from everlearn.evaluation.cell import task_path
from everlearn.learner import ContinualLearner
from everlearn.run.measurement_plan import wanted_tasks

RECIPE = Path(__file__).parents[2] / "recipes" / "gpt2-big-bench.yaml"
TASK = {
    "metrics": ["multiple_choice_grade", "exact_str_match"],
    "preferred_score": "multiple_choice_grade",
    "examples": [{"input": f"Is {i} odd?", "target_scores": {"yes": i % 2, "no": 1 - i % 2}} for i in range(6)],
}


def chat_model(folder: Path) -> Path:
    """A causal model whose tokenizer has a chat template."""
    words = tiny.tokenizer().__class__.from_pretrained(small_runs.save_model("llama", folder / "models"))
    words.chat_template = "{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"
    words.save_pretrained(folder / "models" / "llama")
    return folder / "models" / "llama"


def test_a_run_asks_them_at_every_row(tmp_path: Path) -> None:
    chat_model(tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(TASK), encoding="utf-8")
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    asked = {"name": "odd", "kind": "big-bench", "test": str(tmp_path / "task.json"), "max_new_tokens": 2}
    probe = {"prompts": str(tmp_path / "prompts.txt"), "max_new_tokens": 3}
    evaluation = {"chat": probe, "blocks": 4, "samples": 0}
    recipe = small_runs.recipe(tmp_path, "llama", end_tasks=[asked], evaluation=evaluation)
    assert [[task.name for task in wanted_tasks(recipe, row)] for row in range(3)] == [
        ["odd", "chat"],
        ["chat"],
        ["odd", "chat"],
    ]
    results = ContinualLearner(recipe).run()
    names = ["normalised", "multiple_choice_grade", "exact_match", "chats", "ends_turn", "clean"]
    assert [name for name in results.matrices if name in names] == names
    assert len(results.matrices["chats"].cells) == 3
    assert results.matrices["chats"].columns == ["chat"]
    _, _, score, low, high = results.matrices["normalised"].cells[0]
    assert low is not None
    assert low <= score <= high
    assert results.summary["normalised"].general_drift
    cell = Cell.load(task_path(recipe.folder() / "evaluation", 2, "odd"))
    assert (cell.facts["low"], cell.facts["high"], len(cell)) == ([0.5], [1.0], 6)
    assert Results.load(recipe.folder()).matrices["normalised"].unit == "points"
    assert "Normalised score" in (recipe.folder() / "report.html").read_text(encoding="utf-8")
    assert load(recipe.folder()) == recipe  # as it is kept, it runs again


def test_what_cannot_be_asked_is_found_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has none"):
        ContinualLearner(small_runs.recipe(tmp_path, "gpt2", evaluation={"chat": True})).run()
    assert not list(tmp_path.glob("runs/*/stage-*"))
    with pytest.raises(RecipeError, match=r"Unknown key `evaluation\.chat\.promts`.*Did you mean 'prompts'"):
        small_runs.recipe(tmp_path, "gpt2", evaluation={"chat": {"promts": "x"}})
    with pytest.raises(RecipeError, match=r"Unknown key `evaluation\.lm_eval\.shots`"):
        small_runs.recipe(tmp_path, "gpt2", evaluation={"lm_eval": {"tasks": ["x"], "shots": 3}})


def big_bench(folder: Path) -> None:
    """Files in the format of the five tasks that the recipe names, two of them with subtasks."""
    options = {key: TASK[key] for key in ("preferred_score", "examples")} | {"metrics": ["multiple_choice_grade"]}
    written: dict[str, Any] = {"examples": [{"input": f"Write {i}.", "target": f"{i} is written"} for i in range(4)]}
    text = written | {"metrics": ["bleu", "bleurt"], "preferred_score": "bleurt"}
    tasks = {
        "arithmetic/1_digit_addition": TASK,
        "arithmetic/2_digit_addition": TASK,
        "general_knowledge": options,
        "physics": options,
        "cs_algorithms": {"name": "cs_algorithms", "keywords": ["algorithms"]},
        "cs_algorithms/lcs": options,
        "cs_algorithms/valid_parentheses": options,
        "few_shot_nlg": text,
    }
    for name, raw in tasks.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "task.json").write_text(json.dumps(raw), encoding="utf-8")


def test_the_shipped_recipe_asks_the_tasks_of_the_causal_study(tmp_path: Path) -> None:
    """As it stands, but for a tiny model, files of its form, and a step a stage."""
    raw = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    names = [task["name"] for task in raw["end_tasks"]]
    assert names == ["arithmetic", "general_knowledge", "physics", "cs_algorithms", "few_shot_nlg"]
    guide = (RECIPE.parents[1] / "docs" / "downstream.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in guide.split("### The tasks of the causal study")[1] for name in names)
    (asked,) = re.findall(r"# (lm_eval: .*?) #", RECIPE.read_text(encoding="utf-8"))
    with_lm_eval = load(RECIPE, [f"evaluation.{key}={json.dumps(of)}" for key, of in yaml.safe_load(asked).items()])
    assert [task.kind for task in with_lm_eval.tasks] == ["big-bench"] * 5 + ["lm_eval"] * 2

    place = tmp_path / "tasks"
    big_bench(place)
    domains = [domain["name"] for domain in raw["domains"]]
    changes = [f"domains.{name}.path={small_runs.corpus(tmp_path, name, 200)}" for name in domains]
    changes += [f"general.path={small_runs.corpus(tmp_path, 'general', 200)}"]
    for number, task in enumerate(raw["end_tasks"]):
        at = task["test"].removeprefix("data/BIG-bench/bigbench/benchmark_tasks/")
        changes += [f"end_tasks.{number}.test={place / at}", f"end_tasks.{number}.max_new_tokens=2"]
    changes += [f"model={small_runs.save_model('gpt2', tmp_path / 'models')}", "train.max_steps=1", "train.bf16=false"]
    changes += ["train.gradient_accumulation_steps=1", "train.per_device_train_batch_size=2", "evaluation.blocks=4"]
    changes += ["data.block_size=32", f"data.cache={tmp_path / 'cache'}", f"run.folder={tmp_path / 'run'}"]
    results = ContinualLearner(load(RECIPE, changes)).run()
    assert results.matrices["normalised"].columns == names
    assert len(results.matrices["normalised"].cells) == len(names) * (1 + len(domains))
    for metric, columns in (
        ("multiple_choice_grade", ["arithmetic", "general_knowledge", "physics", "cs_algorithms"]),
        ("exact_match", ["arithmetic"]),
        ("rouge_l", ["few_shot_nlg"]),
    ):
        assert results.matrices[metric].columns == columns, metric
    assert any("few_shot_nlg" in note and "bleurt" in note for note in results.notes)
