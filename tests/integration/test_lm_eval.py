"""Scores of lm_eval in a run: they are what lm_eval says of the checkpoint's folder by itself.

The first tests need no lm_eval: what it returns is written down here.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import yaml

from everlearn.errors import ModelError, RecipeError
from everlearn.evaluation import METRICS, Results, make_task
from everlearn.evaluation.metrics import metrics_of
from everlearn.evaluation.resampling import resample
from everlearn.learner import ContinualLearner
from everlearn.predictors import Checkpoint, Ensemble
from everlearn.tasks import lm_eval as harness
from everlearn.tasks.lm_eval import cell_of


def sample(number: int, **values: Any) -> dict[str, Any]:
    hashes = {key: f"{key}{number}" for key in ("doc_hash", "prompt_hash", "target_hash")}
    return {"filter": "none", "metrics": list(values), **hashes, **values}


def found(
    task: str, samples: list[dict[str, Any]], better: dict[str, bool] | None = None, **said: Any
) -> dict[str, Any]:
    results = {"name": task, "alias": task, "sample_len": len(samples), **{f"{k},none": v for k, v in said.items()}}
    return {"results": {task: results}, "samples": {task: samples}, "higher_is_better": {task: better or {}}}


def test_means_over_examples_have_intervals() -> None:
    samples = [sample(i, acc=float(i < 3), acc_norm=float(i % 2)) for i in range(8)]
    cell = cell_of(found("sums", samples, acc=3 / 8, acc_norm=0.5, acc_stderr="N/A"), "sums", "base", "m")
    assert [metric.name for metric in metrics_of([cell])] == ["lm_eval_acc", "lm_eval_acc_norm"]
    assert METRICS["lm_eval_acc"].score(cell) == 3 / 8
    assert METRICS["lm_eval_acc"].unit == "fraction"
    draws = resample([cell], [METRICS["lm_eval_acc"]], seed=0, resamples=100)["lm_eval_acc"].samples
    assert draws.std() > 0.1
    other = cell_of(found("sums", samples, acc=3 / 8, acc_norm=0.5), "sums", "first", "m")
    assert cell.same_examples(other)
    changed = [{**each, "doc_hash": "x"} for each in samples]
    assert not cell.same_examples(cell_of(found("sums", changed, acc=3 / 8, acc_norm=0.5), "sums", "first", "m"))


def test_perplexities_follow_from_their_examples(tmp_path: Path) -> None:
    pairs = [(-3.0, 2), (-8.0, 3), (-2.5, 4)]
    ratio = sum(a for a, _ in pairs) / sum(b for _, b in pairs)
    samples = [sample(i, word_perplexity=pair, bits_per_byte=pair) for i, pair in enumerate(pairs)]
    said = {"word_perplexity": math.exp(-ratio), "bits_per_byte": -ratio / math.log(2)}
    cell = cell_of(found("text", samples, dict.fromkeys(said, False), **said), "text", "base", "m")
    for name, value in said.items():
        metric = METRICS[f"lm_eval_low_{name}"]
        assert metric.score(cell) == pytest.approx(value)
        assert not metric.higher_is_better
    cell.save(tmp_path / "cell.safetensors")
    assert len(cell) == 3


def test_what_no_example_has_is_kept_without_an_interval() -> None:
    samples = [sample(i, acc=float(i), mcc=(0, 1, i)) for i in range(2)]
    cell = cell_of(found("cola", samples, acc=0.5, mcc=np.float64(0.25)), "cola", "base", "m")
    assert METRICS["lm_eval_mcc"].score(cell) == 0.25
    assert METRICS["lm_eval_acc"].score(cell) == 0.5
    assert len(cell) == 1
    with pytest.raises(ModelError, match="returns no number"):
        cell_of(found("empty", samples), "empty", "base", "m")


def test_a_group_has_the_examples_of_its_tasks() -> None:
    one, other = [sample(i, acc=1.0) for i in range(3)], [sample(9, acc=0.0, f1=1.0)]
    both = {
        "results": {"both": {"acc,none": 0.75}, "one": {"acc,none": 1.0}},
        "groups": {"both": {"acc,none": 0.75}},
        "samples": {"one": one, "other": other},
        "higher_is_better": {},
    }
    cell = cell_of(both, "both", "base", "m")
    assert len(cell) == 4
    assert METRICS["lm_eval_acc"].score(cell) == 0.75


def test_a_metric_of_results_is_known_by_its_name() -> None:
    assert "lm_eval_exact_match_strict_match" in METRICS
    assert METRICS["lm_eval_exact_match_strict_match"].title == "lm_eval exact_match_strict_match"
    assert "llm_eval" not in METRICS


def test_without_lm_eval_a_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.importlib.util, "find_spec", lambda name: None)
    harness.manager.cache_clear()
    recipe = small_runs.recipe(tmp_path, "gpt2", evaluation={"lm_eval": ["hellaswag"]})
    assert recipe.evaluation.lm_eval is not None
    assert [task.name for task in recipe.tasks] == ["hellaswag"]
    with pytest.raises(RecipeError, match=r"pip install 'everlearn\[lm-eval\]'"):
        make_task(recipe.tasks[0]).check()
    with pytest.raises(RecipeError, match="more than once"):
        small_runs.recipe(tmp_path, "gpt2", evaluation={"lm_eval": ["piqa", "piqa"]})


def test_only_one_plain_model_can_be_asked(tmp_path: Path) -> None:
    recipe = small_runs.recipe(tmp_path, "gpt2", evaluation={"lm_eval": ["hellaswag"]})
    task: Any = make_task(recipe.tasks[0])
    model = small_runs.tiny.model("gpt2")
    assert task._model(Checkpoint(model)) is model
    with pytest.raises(ModelError, match="here the predictor is Ensemble"):
        task._model(Ensemble((Checkpoint(model), Checkpoint(model))))
    model.transformer.h[0].lengthens_rows = True
    with pytest.raises(ModelError, match="prompts before its texts"):
        task._model(Checkpoint(model))
    with pytest.raises(ModelError, match="reads from left to right"):
        task.check_model("encoder")


# -- with lm_eval itself --------------------------------------------------------------------------------------------


def own_tasks(folder: Path) -> Path:
    """Two tasks and their group, as lm_eval's users write their own."""
    folder.mkdir()
    rows = [{"q": f"What is {i} plus {i}?", "choices": [str(2 * i), str(i), "none"], "gold": 0} for i in range(12)]
    lines = folder / "rows.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(lines)}}, "test_split": "test"}
    choice = {"output_type": "multiple_choice", "doc_to_text": "{{q}}\nA:", "doc_to_choice": "choices"}
    rolling = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{q}}"}
    tasks = {
        "own_sums": {**choice, "doc_to_target": "gold", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
        "own_text": {**rolling, "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
    }
    for name, options in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **data, **options}), encoding="utf-8")
    return folder


def test_scores_of_a_checkpoint_are_what_lm_eval_says_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed (the extra lm-eval)")
    from lm_eval.tasks import TaskManager

    folder = own_tasks(tmp_path / "tasks")
    own = TaskManager(include_path=str(folder), include_defaults=False)
    monkeypatch.setattr(harness, "manager", lambda path: own)  # thousands of other tasks are not read
    asked = {"tasks": ["own_sums", "own_text"], "include_path": str(folder)}
    recipe = small_runs.recipe(tmp_path, "llama", domains=("first",), evaluation={"lm_eval": asked, "blocks": 4})
    results = ContinualLearner(recipe).run()
    run = recipe.folder()
    stage = next(run.glob("stage-01*"))
    for row, place in (("base", recipe.model.path), ("first", str(stage))):
        said = lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": place, "device": "cpu"},
            batch_size=recipe.evaluation.batch_size,
            tasks=asked["tasks"],
            task_manager=own,
            bootstrap_iters=0,
        )["results"]
        for task, name, metric in (
            ("own_sums", "acc", "lm_eval_acc"),
            ("own_sums", "acc_norm", "lm_eval_acc_norm"),
            ("own_text", "word_perplexity", "lm_eval_low_word_perplexity"),
            ("own_text", "bits_per_byte", "lm_eval_low_bits_per_byte"),
        ):
            value = results.matrices[metric].estimates()[row, task].value
            assert value == pytest.approx(said[task][f"{name},none"], rel=1e-6), (row, task, name)
    assert Results.load(run / "results.json").matrices.keys() == results.matrices.keys()
    assert "own_sums" in (run / "report.html").read_text(encoding="utf-8")


def test_what_is_recorded_of_a_real_checkpoint_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of `benchmarks/lm_eval_equal.py` follows from its numbers, which are those of both."""
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    import lm_eval_equal

    found = json.loads(lm_eval_equal.PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    assert lm_eval_equal.page(found) == lm_eval_equal.PAGE.read_text(encoding="utf-8")
    compared = [row for row in found["rows"] if not lm_eval_equal.saved_otherwise(row)]
    assert {row["checkpoint"] for row in compared} == {"base", lm_eval_equal.DOMAIN}
    assert lm_eval_equal.differ(found["rows"]) == []
    wrong = {**compared[0], "everlearn": compared[0]["everlearn"] + 1e-6}
    assert lm_eval_equal.differ([wrong]) == [wrong]
