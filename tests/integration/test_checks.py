"""One list of checks: `validate` shows it and a run begins with it, before anything is written or scored."""

from __future__ import annotations

import datetime
import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe

from bench_suite import TinySuite
from cli_project import Project
from everlearn.config.recipe import load, parse
from everlearn.errors import RecipeError, RunError
from everlearn.learner import ContinualLearner
from everlearn.run.checks import checks
from mistakes import Case, group
from mistakes.cases import arguments

SCHEDULE = {"lr_scheduler_type": "cosine_with_min_lr"}
MORE = [
    Case("an optimizer of another library", group("train", optim="schedule_free_adamw"), says=("schedulefree",)),
    Case("a schedule that lacks an option", group("train", **SCHEDULE), says=("cosine_with_min_lr`", "min_lr")),
    Case(
        "an attention kernel that is not installed",
        lambda project: project.recipe.update(
            model={"path": project.recipe["model"], "attn_implementation": "flash_attention_2"}
        ),
        says=("`model.attn_implementation: flash_attention_2`",),
    ),
]
REFUSED = [case for case in arguments.CASES if case.command == Case.command and case.code == 2] + MORE


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_validate_and_run_refuse_alike(everlearn: Project, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    everlearn.patches = monkeypatch  # type: ignore[attr-defined]
    case.spoil(everlearn)
    shown = json.loads(everlearn("validate", "recipe.yaml", "--json").out)
    sentence = next(check["detail"] for check in shown["checks"] if check["ok"] is False)
    for part in case.says:
        assert part in sentence
    outcome = everlearn.fails("run", "recipe.yaml", says=case.says)
    assert f"Error: {sentence}" in outcome.err
    assert not everlearn.run_folder.exists()
    assert not (everlearn.folder / "cache" / "cells").exists()  # the base model was not scored


def test_a_refused_run_leaves_the_folder_to_the_corrected_recipe(everlearn: Project) -> None:
    everlearn.recipe["train"]["fsdp"] = True
    everlearn.fails("run", "recipe.yaml", says=("`train.fsdp`",))
    del everlearn.recipe["train"]["fsdp"]
    assert everlearn("run", "recipe.yaml").code == 0


def test_the_list_is_what_a_run_begins_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = ContinualLearner(recipe(tmp_path))
    assert [check.name for check in checks(learner) if not check.ok] == []
    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**6, 10**6 - 1, 1))
    with pytest.raises(RunError, match="1 B free"):
        learner.run()
    assert not learner.folder.path.exists()


@pytest.mark.parametrize(("options", "noted"), [({}, True), ({"lr_scheduler_type": "constant"}, False)])
def test_a_stage_that_ends_in_its_warm_up_is_noted(everlearn: Project, options: dict[str, Any], noted: bool) -> None:
    everlearn.recipe["train"].update(max_steps=2, **options)
    everlearn.recipe["domains"][1]["train"] = {"warmup_steps": 2}
    made = {
        check["name"]: check["detail"]
        for check in json.loads(everlearn("validate", "recipe.yaml", "--json").out)["checks"]
    }
    said = "The warm-up of 'b' has 2 steps and its stage 2: its learning rate only rises."
    assert (said in made["what is learnt and measured"]) == noted
    assert "warm-up of 'a'" not in str(made)


@pytest.mark.parametrize("place", ["a.jsonl", "a.jsonl/run", "/proc/run", "x" * 300])
def test_a_folder_that_cannot_be_made(everlearn: Project, place: str) -> None:
    everlearn.recipe["run"] = {"folder": place}
    everlearn.fails("run", "recipe.yaml", says=("run.folder",))


def test_a_domain_that_is_learnt_later_is_checked_too(
    everlearn: Project, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise RecipeError("`train.optim` has gone")

    shutil.copytree(finished_run, everlearn.run_folder)
    before = (everlearn.run_folder / "recipe.yaml").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("everlearn.run.checks.rehearse", refuse)
        everlearn.fails("learn", "runs/first", "--domain", "c=c.jsonl", says=("has gone",))
    assert (everlearn.run_folder / "recipe.yaml").read_bytes() == before


def test_a_run_that_is_resumed_where_a_tracker_is_missing(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> None:
        raise RuntimeError("It requires a package.\nInstall it.")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ContinualLearner, "train_stage", stopped)
        assert everlearn("run", "recipe.yaml").code == 130
    with monkeypatch.context() as patched:
        patched.setattr("transformers.trainer.get_reporting_integration_callbacks", gone)
        everlearn.fails("resume", "runs/first", says=("`train` cannot be used here: It requires a package.",))
    assert everlearn("resume", "runs/first").code == 0


def test_a_grid_is_checked_before_its_base_is_scored(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("everlearn.config.addresses.SUITES", {"tiny": TinySuite(tmp_path / "suite")})
    (everlearn.folder / "settings.yaml").write_text("train: {optim: lomo}\n")
    everlearn.fails(
        *("bench", "tiny", "--methods", "sequential", "--seeds", "0", "--settings", "settings.yaml"),
        says=("sequential: `train.optim: lomo`",),
    )
    assert not list(everlearn.folder.glob("runs/**/*.safetensors"))


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), datetime.date(2020, 1, 1), {3: 4}, b"x"])
def test_what_a_saved_recipe_would_not_give_back_is_refused(everlearn: Project, value: Any) -> None:
    for options in ({"lr_scheduler_kwargs": {"inner": [value]}}, {"accelerator_config": {"inner": value}}):
        everlearn.recipe["train"] = options
        with pytest.raises(RecipeError, match="inner"):
            parse(everlearn.recipe)
        everlearn.recipe["train"] = {}
        everlearn.recipe["domains"][0]["train"] = {"lr_scheduler_kwargs": {"inner": value}}
        with pytest.raises(RecipeError, match="inner"):
            parse(everlearn.recipe)


def test_nested_options_are_read_back_as_they_were(everlearn: Project) -> None:
    nested = {"num_cycles": 0.5, "a": [1, None, True, {"b": "2020-01-01"}], "tiny": 1e-300, "text": ".inf"}
    everlearn.recipe["train"] = {"lr_scheduler_kwargs": nested, "accelerator_config": {"even_batches": False}}
    made = parse(everlearn.recipe)
    (everlearn.folder / "saved.yaml").write_text(made.to_yaml(), encoding="utf-8")
    again = load(everlearn.folder / "saved.yaml")
    assert again.model_dump() == made.model_dump()
    assert again.train["lr_scheduler_kwargs"] == nested
