"""The suite `glue`: single tasks that a masked model answers, beside the text that it was pre-trained on."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import continual_tasks as small
import tiny
from bench_suite import keys_of
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import DataError, RecipeError
from everlearn.grid.rows import resolve
from everlearn.learner import ContinualLearner
from everlearn.methods import names
from everlearn_bench.suites import find_suite, overlay_of
from everlearn_bench.suites.glue.systems import SYSTEMS

GLUE = find_suite("glue")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Copies of the tasks, and two sources of general text."""
    folder = tmp_path / "data"
    for name in GLUE.domains:
        small.copied(folder, name)
    for seed, source in enumerate(("books", "wikipedia")):
        for part, count in (("train", 30), ("validation", 6)):
            place = folder / "D0" / source / f"{part}.jsonl.gz"
            place.parent.mkdir(parents=True, exist_ok=True)
            lines = (json.dumps({"text": text}) for text in tiny.texts(count, seed + 10 * count))
            place.write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def made(order: Any, place: Path, folder: Path, method: str = "sequential", **settings: Any) -> Recipe:
    keys = keys_of(GLUE, order, place, SYSTEMS[method].methods, **settings)
    return parse(keys | {"run": keys["run"] | {"folder": str(folder)}})


def test_a_recipe_is_one_task_and_general_text(data: Path) -> None:
    recipe = made(2, data, Path("x"))
    assert [domain.name for domain in recipe.domains] == ["mnli"]
    assert recipe.objective == "masked"
    assert recipe.domains[0].target_column == "answer"
    assert recipe.general is not None
    assert recipe.general.path == str(data / "D0" / "*" / "train.jsonl.gz")
    [task] = recipe.end_tasks
    assert (task.kind, task.choices) == ("choice", ("neutral", "entailment", "contradiction"))
    assert tuple(GLUE.first) == ("sst-2", "mnli", "qqp", "rte", "subj", "trec")
    assert len(made(GLUE.first, data, Path("x")).end_tasks) == 6, "the base model is asked every task"
    shutil.rmtree(data / "tasks" / "trec")
    assert GLUE.on(overlay_of({}), data).first == GLUE.first[:-1], "of which there are examples"
    with pytest.raises(DataError, match=r"'trec' needs its examples, and .* \(no `tasks/trec`\)"):
        made(6, data, Path("x"))
    own = made(1, data, Path("x"), general={"path": "mine.txt", "validation": 0.1})
    assert own.general is not None
    assert own.general.path == "mine.txt"


def test_what_a_recipe_refuses(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"`suite\.answers` in the settings: must be 'chosen'"):
        made(1, data, tmp_path, suite_keys={"answers": "head"})
    with pytest.raises(RecipeError, match=r"Unknown key `end_tasks\.0\.learning_rate`"):
        made(1, data, tmp_path, end_tasks={"*": {"learning_rate": 1e-3}})
    with pytest.raises(RecipeError, match="has no domain 'sst2'"):
        made(["sst2"], data, tmp_path)
    with pytest.raises(DataError, match="has no general text"):
        made(1, small_folder(tmp_path), tmp_path)


def small_folder(tmp_path: Path) -> Path:
    for name in GLUE.domains:
        small.copied(tmp_path / "other", name)
    return tmp_path / "other"


def test_rows_are_methods_that_there_are() -> None:
    for name, system in SYSTEMS.items():
        assert [entry.title for entry in resolve([name], GLUE)] == [system.title]
        assert {method["name"] for method in system.methods} <= {*names()}


def test_a_task_is_learnt_and_pre_training_measured(data: Path, tmp_path: Path) -> None:
    tiny.model("roberta").save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    recipe = made(
        1, data, tmp_path / "run", "ewc", model=str(tmp_path / "m"), data={"block_size": 64}, evaluation={"blocks": 4},
        grid={"importance_samples": 4},
        train={"max_steps": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
               "learning_rate": 1e-2},
    )  # fmt: skip
    results = ContinualLearner(recipe).run()
    assert results.matrices["choice_accuracy"].values[1][0] is not None
    bits = results.matrices["bits_per_byte"]
    assert bits.columns == ["sst-2", "general"]
    before, after = bits.values[0], bits.values[1]
    assert after[0] < before[0], "answers are learnt"  # type: ignore[operator]
    assert after[1] != before[1], "general text is measured as masked text"


def test_general_text_of_examples_isolates_them_too(tmp_path: Path) -> None:
    """Packed beside each other, an encoder would read the prompts and answers of the others."""
    tiny.model("roberta").save_pretrained(tmp_path / "m")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    examples = tmp_path / "examples.jsonl"
    examples.write_text("".join(json.dumps({"prompt": text, "answer": "yes"}) + "\n" for text in tiny.texts(8, 1)))
    recipe = parse(
        {
            "model": {"path": str(tmp_path / "m")},
            "domains": [{"name": "plain", "path": str(examples), "text_column": "prompt"}],
            "general": {"path": str(examples), "text_column": "prompt", "target_column": "answer"},
            "run": {"folder": str(tmp_path / "run"), "name": "x"},
        }
    )
    objective: Any = ContinualLearner(recipe).setting().objective
    assert objective.isolate
