"""A stream of tasks in the text-to-text form: learnt as domains, measured by exact match of what the model writes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import recipe

import tiny
from everlearn.commands.validate import preflight
from everlearn.config.recipe import Recipe, load, parse
from everlearn.errors import ModelError
from everlearn.evaluation import Cell, Results, make_task, set_path, task_path
from everlearn.learner import ContinualLearner
from everlearn.methods import REGISTRY
from everlearn.predictors import Checkpoint, Ensemble, Predictor
from everlearn.predictors.predictor import models_of
from methods_of_other_kinds import registered

GUIDE = Path(__file__).parents[2] / "docs" / "evaluation.md"
RECIPE = Path(__file__).parents[2] / "recipes" / "written-answers.yaml"
NAMES = ["the", "model", "learns", "domain", "and", "keeps", "what", "knew", "before", "while", "tensors", "flow"]


@pytest.fixture(autouse=True, scope="module")
def methods() -> Iterator[None]:
    with registered():
        yield


def written(folder: Path, name: str, count: int, seed: int, place: int) -> str:
    """Three words; the answer is one of them, the first or the last."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(seed)
    words = [generator.sample(NAMES, 3) for _ in range(count)]
    rows = [{"text": f" {' '.join(w)}:", "target": f" {w[place]}"} for w in words]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def stream(
    folder: Path, architecture: str = "llama", method: Any = "sequential", steps: int = 150, **groups: Any
) -> Recipe:
    """The first word, then the last word: the second task contradicts the first."""
    data, model = folder / "data", folder / "models" / architecture
    if not model.is_dir():
        tiny.model(architecture).save_pretrained(model)
        tiny.tokenizer().save_pretrained(model)
    domains, tasks = [], []
    for seed, (name, place) in enumerate((("first", 0), ("last", 2))):
        path = written(data, name, 400, seed, place)
        domains.append({"name": name, "path": path, "target_column": "target", "validation": 0.1})
        test = written(data, f"{name}-test", 24, 10 + seed, place)
        task = {"kind": "text-to-text", "test": test, "max_new_tokens": 4, "labels": NAMES}
        tasks.append({"name": f"{name}_word", "domain": name, **task})
    options = tasks[0] | {"name": "options", "kind": "choice", "prompt": "{text}", "choices": [f" {n}" for n in NAMES]}
    options = {key: value for key, value in options.items() if key not in ("labels", "max_new_tokens")}
    tasks.append(options | {"answer_column": "target"})
    return parse(
        {
            "model": str(model),
            "domains": domains,
            "method": method,
            "objective": "text-to-text",
            "end_tasks": tasks,
            "data": {"block_size": 32, "cache": str(folder / "cache")},
            "train": {
                "max_steps": steps,
                "per_device_train_batch_size": 8,
                "learning_rate": 5e-3,
                "save_strategy": "no",
            },
            "evaluation": {"blocks": 8, "batch_size": 16, "end_tasks": "every"},
            "run": {"name": "run", "folder": str(folder / "run")},
        }
        | groups
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> ContinualLearner:
    """The stream, learnt by plain training."""
    learner = ContinualLearner(stream(tmp_path_factory.mktemp("plain")))
    learner.run()
    return learner


def cell(run: Path, row: int, task: str) -> Cell:
    return Cell.load(task_path(run / "evaluation", row, task))


def matches(run: Path, task: str, outcome: str = "exact_match") -> list[float]:
    """After no, one and two domains."""
    return [float(cell(run, row, task)[outcome].mean()) for row in range(3)]


def measured(learner: ContinualLearner, predictor: Predictor, task: str, batch_size: int = 16) -> Cell:
    how = replace(learner.scorer().conditions(2), batch_size=batch_size)
    for model in models_of(predictor):
        model.to(how.device)
    config = next(each for each in learner.recipe.end_tasks if each.name == task)
    return make_task(config).measure(predictor, how)


def test_a_task_is_learnt_and_forgotten_in_exact_match(plain: ContinualLearner) -> None:
    run = plain.folder.path
    base, learnt, after = matches(run, "first_word")
    assert base == 0
    assert learnt >= 0.9
    assert after <= 0.5
    results = Results.load(run)
    table = results.matrices["exact_match"]
    assert table.columns == ["first_word", "last_word"]
    assert {name: value for row, name, value, *_ in table.cells if row == "first"}["first_word"] == learnt
    forgotten = results.summary["exact_match"].forgotten["first_word"]
    assert forgotten.value == pytest.approx(learnt - after)
    assert forgotten.low is not None
    assert forgotten.low > 0, "clearly, over the examples"
    assert {"accuracy", "macro_f1", "token_f1", "rouge_l", "choice_accuracy"} <= set(results.matrices)
    assert results.matrices["choice_accuracy"].columns == ["options"]
    assert not any("fine-tuned with one seed" in note for note in results.notes)
    right = cell(run, 1, "first_word")
    assert [text in target for text, target in zip(right.texts, _stripped(right), strict=True)] == [
        bool(each) for each in right["exact_match"]
    ]
    assert (cell(run, 1, "options")["right_option"] < len(NAMES)).all()
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Exact match" in page
    assert "Choice accuracy per byte" in page


def _stripped(found: Cell) -> list[list[str]]:
    return [[one.strip() for one in right] for right in found.facts["targets"]]


def test_what_was_kept_is_what_a_loaded_model_writes(plain: ContinualLearner) -> None:
    run = plain.folder.path
    model, objective = plain.model_after(1), plain.setting().objective
    for size in (1, 7):
        again = measured(plain, Checkpoint(model, objective), "first_word", size)
        assert again.texts == cell(run, 1, "first_word").texts
        assert again.same_examples(cell(run, 2, "first_word"))


def test_an_ensemble_of_stages_answers(plain: ContinualLearner, tmp_path: Path) -> None:
    ensemble = ContinualLearner(stream(tmp_path, method="stage_ensemble"))
    results = ensemble.run()
    objective = ensemble.scorer().conditions(2).objective
    stages = [Checkpoint(ensemble.model_after(k), objective) for k in (1, 2)]
    for task in ("first_word", "options"):
        found, one = (cell(ensemble.folder.path, row, task) for row in (2, 1))
        for row, by_hand in ((found, Ensemble((stages[0], stages[1]))), (one, stages[0])):
            again = measured(ensemble, by_hand, task)
            assert again.texts == row.texts
            for name, outcome in row.outcomes.items():
                assert again[name] == pytest.approx(outcome, rel=1e-6), name
    assert cell(ensemble.folder.path, 2, "options")["option_nats"].tolist() != (
        cell(plain.folder.path, 2, "options")["option_nats"].tolist()
    )
    # Training was plain training; only what is tested differs.
    assert matches(ensemble.folder.path, "first_word")[:2] == matches(plain.folder.path, "first_word")[:2]
    assert matches(ensemble.folder.path, "first_word")[2] >= matches(plain.folder.path, "first_word")[2]
    assert results.methods[0].name == "stage_ensemble"


def test_each_held_out_row_is_read_by_its_stage(tmp_path: Path) -> None:
    """By its definition: the smaller of the losses that the two stages' models have on it."""
    nats: dict[str, list[list[float]]] = {}
    (code,) = re.findall(r"^```python\n(.*?class Stages.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    exec(compile(code[code.index("from everlearn.predictors import Checkpoint, Ensemble") :], "stages.py", "exec"), {})
    for method in ("sequential", "stage_by_text", "stage_ensemble", "stages"):
        made = recipe(tmp_path, "gpt2", method, run={"name": method, "folder": str(tmp_path / method)})
        ContinualLearner(made).run()
        nats[method] = [
            Cell.load(set_path(tmp_path / method / "evaluation", row, "first"))["nats"].tolist() for row in (1, 2)
        ]
    one, two = np.array(nats["sequential"])
    assert nats["stage_by_text"][0] == one.tolist()
    assert nats["stage_by_text"][1] == pytest.approx(np.minimum(one, two).tolist(), rel=1e-6)
    assert (one != two).all()
    assert nats["stages"] == nats["stage_ensemble"], "the method of docs/evaluation.md"
    del REGISTRY["stages"]
    mixed = np.array(nats["stage_ensemble"][1])
    assert (mixed < np.maximum(one, two)).all()
    assert (mixed <= (one + two) / 2 + 1e-3).all(), "−log of a mean is at most the mean of −log (Jensen)"


def test_a_masked_model_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    test = written(tmp_path / "labelled", "test", 4, 0, 0)
    made = recipe(tmp_path, "roberta", end_tasks=[{"kind": "text-to-text", "name": "words", "test": test}])
    with pytest.raises(ModelError, match="End task 'words' is of kind text-to-text, which needs a model that reads"):
        ContinualLearner(made).run()
    assert not list(made.folder().glob("stage-01-*"))
    path = tmp_path / "recipe.yaml"
    path.write_text(made.changed(run={"name": "other"}).to_yaml(), encoding="utf-8")
    failed = [check for check in preflight(path) if check.ok is False]
    assert [check.name for check in failed] == ["end task 'words': for this model"]
    assert "reads from left to right" in failed[0].detail


def test_the_shipped_recipe_runs(tmp_path: Path) -> None:
    """As it stands, but for a tiny model, files of its form, and two steps a stage."""
    model, changes = tmp_path / "model", []
    tiny.model("qwen3").save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    answers = {"topics": ("World", "Sports"), "sentiment": ("good", "bad"), "entailment": ("entailment", "neutral")}
    for number, (name, words) in enumerate(answers.items()):
        for part in ("", "-test"):
            rows = [
                {"question": f"{text} Which?", "answer": words[i % 2]} for i, text in enumerate(tiny.texts(30, number))
            ]
            path = tmp_path / f"{name}{part}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        changes += [f"domains.{name}.path={tmp_path / name}.jsonl"]
        changes += [f"end_tasks.{number}.test={tmp_path / name}-test.jsonl", f"end_tasks.{number}.max_test=6"]
    changes += [f"model={model}", "train.max_steps=2", "train.gradient_accumulation_steps=1", "evaluation.blocks=4"]
    changes += ["data.block_size=128", f"data.cache={tmp_path / 'cache'}", "train.per_device_train_batch_size=2"]
    made = load(RECIPE, [*changes, f"run.folder={tmp_path / 'run'}"])
    results = ContinualLearner(made).run()
    assert results.matrices["accuracy"].columns == ["topic"]
    assert results.matrices["exact_match"].columns == ["topic", "feeling"]
    assert results.matrices["choice_accuracy"].columns == ["entails"]
    assert len(results.matrices["exact_match"].cells) == 4 * 2
    assert results.summary["exact_match"].forgotten
