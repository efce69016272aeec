"""What a run measures: which columns, inside a stage, shared between runs, and with few weights kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import assert_same, corpus, elsewhere, labelled, recipe, save_model, tensors
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny
from everlearn import files
from everlearn.data.corpus import Domain
from everlearn.errors import ModelError
from everlearn.evaluation import Cell, Results, make_task, set_path, task_path
from everlearn.evaluation.cell_cache import SharedCells
from everlearn.evaluation.task import Conditions, task_config
from everlearn.learner import ContinualLearner
from everlearn.model.objectives import make_objective
from everlearn.run.collect_results import Outcome
from everlearn.run.folder import RunFolder
from everlearn.tasks.held_out import HeldOutText

NAMES = ("first", "second", "third")


def made(folder: Path, **groups: Any) -> Any:
    """Three domains and a general text."""
    general = {"path": str(corpus(folder / "data", "other")), "validation": 0.15}
    return recipe(folder, domains=NAMES, general=general, **groups)


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ("own", [(1, "first"), (1, "general"), (2, "second"), (2, "general")]),
        ("seen", [(1, "first"), (1, "general"), (2, "first"), (2, "second"), (2, "general")]),
        ("all", [(row, name) for row in (1, 2) for name in (*NAMES, "general")]),
    ],
)
def test_columns(columns: str, wanted: list[tuple[int, str]], tmp_path: Path) -> None:
    results = ContinualLearner(made(tmp_path, evaluation={"columns": columns})).run()
    ends = [(row, name) for row in (0, 3) for name in (*NAMES, "general")]
    table = results.matrices["loss"]
    assert {(table.rows.index(row), name) for row, name, *_ in table.cells} == {*ends, *wanted}
    assert list(results.summary["loss"].forgotten) == ["first", "second", "mean"]
    assert list(results.summary["loss"].learnt) == [*NAMES, "mean"]
    assert list(results.summary["loss"].general_drift) == ["general"]
    assert bool(results.summary["loss"].forward_transfer) == (columns == "all")


def test_fewer_columns_change_no_score(tmp_path: Path) -> None:
    every = ContinualLearner(made(tmp_path)).run()
    own = ContinualLearner(elsewhere(made(tmp_path, evaluation={"columns": "own"}), tmp_path / "own")).run()
    for metric in ("bits_per_byte", "perplexity"):
        dense, sparse = every.matrices[metric].estimates(), own.matrices[metric].estimates()
        assert len(sparse) < len(dense)
        assert all(dense[place] == score for place, score in sparse.items())
        assert own.summary[metric].forgotten == every.summary[metric].forgotten
        assert own.summary[metric].learnt == every.summary[metric].learnt


@pytest.mark.parametrize("method", ["sequential", "hat", "migu", {"name": "das", "samples": 4}, "inc_lora"])
def test_scores_inside_a_stage_leave_training_as_it_is(method: Any, tmp_path: Path) -> None:
    plain = recipe(tmp_path, method=method)
    looked = elsewhere(recipe(tmp_path, method=method, evaluation={"every": 2}), tmp_path / "looked")
    ContinualLearner(plain).run()
    ContinualLearner(looked).run()
    assert_same(plain.folder(), looked.folder())
    lines = [line for line in RunFolder(looked.folder()).metrics() if "bits_per_byte" in line]
    assert [(line["stage"], line["step"]) for line in lines] == [(s, step) for s in (1, 2) for step in (2, 4, 5)]
    assert set(lines[0]["bits_per_byte"]) == {"first", "second"}
    assert lines[0]["tokens"] < lines[1]["tokens"]
    if method == "sequential":  # the last step of a stage is the stage
        table = Results.load(looked.folder()).matrices["bits_per_byte"].estimates()
        assert lines[-1]["bits_per_byte"]["second"] == pytest.approx(table["second", "second"].value, rel=1e-6)


def test_a_second_run_finds_the_base_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "labelled"
    data.mkdir()
    task = {"name": "word", "train": str(labelled(data, "train", 24)), "test": str(labelled(data, "test", 12))}
    wanted = recipe(tmp_path, end_tasks=[task | {"epochs": 1, "max_length": 32}])
    measured: list[str] = []
    made = HeldOutText.cell

    def counted(self: HeldOutText, found: Any, conditions: Any) -> Cell:
        measured.append(f"{conditions.row} {self.name}")
        return made(self, found, conditions)

    monkeypatch.setattr(HeldOutText, "cell", counted)
    first = ContinualLearner(wanted)
    first.run()
    assert measured.count("base first") == 1
    measured.clear()
    other = elsewhere(wanted.changed(method="das"), tmp_path / "other")
    learner = ContinualLearner(other)
    learner.check()
    learner.folder.create(other)
    learner.scorer().score(0)
    assert measured == []
    for place in (set_path, task_path):
        name = "first" if place is set_path else "word"
        mine, theirs = (Cell.load(place(run / "evaluation", 0, name)) for run in (wanted.folder(), other.folder()))
        assert mine.same_examples(theirs)
        assert all((mine[key] == theirs[key]).all() for key in mine.outcomes)
    for cell in (tmp_path / "cache" / "cells").glob("*/cell.safetensors"):
        cell.write_bytes(b"broken")
    shutil.rmtree(other.folder() / "evaluation" / "stage-00")
    learner.scorer().score(0)
    assert measured == ["base first", "base second"], "a damaged cell is measured again"
    changed = elsewhere(wanted.changed(evaluation={"blocks": 3, "batch_size": 4}), tmp_path / "changed")
    ContinualLearner(changed).run()
    assert measured.count("base first") == 2, "other blocks are another task"


def test_base_scores_are_shared_by_what_decides_them_alone(tmp_path: Path) -> None:
    place = save_model("gpt2", tmp_path)
    rows = "".join(json.dumps({"text": text, "target": "a"}) + "\n" for text in tiny.texts(3))
    (tmp_path / "asked.jsonl").write_text(rows, encoding="utf-8")
    config = {"kind": "text-to-text", "name": "asked", "test": str(tmp_path / "asked.jsonl")}
    task = make_task(task_config(config, "end_tasks.0"))

    def place_of(attention: str = "sdpa", **changes: Any) -> Path:
        tokenizer = AutoTokenizer.from_pretrained(place)
        for name, value in changes.items():
            setattr(tokenizer, name, value)
        model = AutoModelForCausalLM.from_pretrained(place, attn_implementation=attention)
        how = Conditions("base", tokenizer, make_objective(None, model, tokenizer), 4)
        shared = SharedCells(tmp_path, model)
        before = shared.path(task, how)
        tokenizer(["cut", "and padded"], padding=True, truncation=True, max_length=8)
        assert shared.path(task, how) == before
        assert SharedCells(tmp_path, model).path(task, how) == before, "cutting and padding is the caller's"
        return before

    other = [place_of("eager"), place_of(eos_token="<mask>"), place_of(model_max_length=16)]
    assert len({place_of(), *other}) == 4
    assert place_of() == place_of()


EWC = {"name": "ewc", "samples": 4}


def one_more(run: Path, data: Path) -> Results:
    """Learn a fourth domain after a run."""
    domain = Domain(name="fourth", path=str(corpus(data, "fourth")), validation=0.15)
    return ContinualLearner.open(run).learn(domain)


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results, dict[str, Tensor]]:
    """Of a run that keeps every stage: its results before and after a fourth domain, and all tensors."""
    folder = tmp_path_factory.mktemp("complete")
    full = made(folder, method=EWC)
    return ContinualLearner(full).run(), one_more(full.folder(), folder / "data"), tensors(full.folder())


@pytest.mark.parametrize(("keep", "kept"), [("last", [3]), (2, [2, 3]), ("all", [1, 2, 3])])
def test_stages_that_are_not_kept_lose_their_weights_alone(
    keep: Any, kept: list[int], tmp_path: Path, complete: tuple[Results, Results, dict[str, Tensor]]
) -> None:
    whole, thick, theirs = complete
    run = {"name": "run", "folder": str(tmp_path / "run"), "keep_stages": keep}
    results = ContinualLearner(made(tmp_path, method=EWC, run=run)).run()
    assert results.matrices == whole.matrices
    assert results.summary == whole.summary
    folder = RunFolder(tmp_path / "run")
    has = [i for i, name in enumerate(NAMES, 1) if not folder.without_weights(i, name)]
    assert has == kept
    assert all(folder.finished(i, name) for i, name in enumerate(NAMES, 1))
    assert all((folder.stage(i, name) / "memory" / "ewc.safetensors").is_file() for i, name in enumerate(NAMES, 1))
    files.write_text(folder.results_file, "gone")
    folder.results_file.unlink()
    assert ContinualLearner.open(folder.path).resume().matrices == whole.matrices

    thin = one_more(folder.path, tmp_path / "data")
    scores = thick.matrices["loss"].estimates()
    assert all(scores[place] == score for place, score in thin.matrices["loss"].estimates().items())
    assert thin.summary["loss"].forgotten == thick.summary["loss"].forgotten
    mine = tensors(folder.path)
    last = [name for name in mine if name.startswith("stage-04")]
    assert last
    assert all(mine[name].equal(theirs[name]) for name in last)
    if keep == "last":
        with pytest.raises(ModelError, match=r"stage 1 \('first'\).*were removed: `run.keep_stages` is last"):
            ContinualLearner.open(folder.path).tested("first", after="first")


def test_a_finished_run_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(tmp_path)
    results = ContinualLearner(wanted).run()
    loaded: list[int] = []
    some_model = ContinualLearner.some_model
    monkeypatch.setattr(ContinualLearner, "some_model", lambda self: loaded.append(1) or some_model(self))
    before = {path: path.stat().st_mtime_ns for path in wanted.folder().rglob("*") if path.name != ".lock"}
    assert ContinualLearner.open(wanted.folder()).resume() == results
    assert loaded == []
    assert before == {path: path.stat().st_mtime_ns for path in wanted.folder().rglob("*") if path.name != ".lock"}
    set_path(wanted.folder() / "evaluation", 1, "first").unlink()
    assert ContinualLearner.open(wanted.folder()).resume().matrices == results.matrices
    assert loaded


@pytest.mark.parametrize("columns", ["own", "seen", "all"])
def test_a_run_that_lost_old_weights_and_learnt_more_is_finished(columns: str, tmp_path: Path) -> None:
    run = {"name": "run", "folder": str(tmp_path / "run"), "keep_stages": "last"}
    ContinualLearner(recipe(tmp_path, evaluation={"columns": columns}, run=run)).run()
    new = Domain(name="third", path=str(corpus(tmp_path / "data", "third")), validation=0.15)
    ContinualLearner.open(tmp_path / "run").learn(new)
    learner = ContinualLearner.open(tmp_path / "run")
    assert Outcome(learner.recipe, learner.folder).is_current()
    cell = set_path(tmp_path / "run" / "evaluation", 3, "first")
    cell.unlink()
    assert not Outcome(learner.recipe, learner.folder).is_current()
