"""What is checked before a run trains, and arguments of single domains."""

from __future__ import annotations

import datetime
import json
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import STEPS, recipe, tensors

from bench_suite import TinySuite
from cli_project import Project
from everlearn.commands.plan import make_plan
from everlearn.commands.validate import preflight
from everlearn.config.recipe import Recipe, load, parse
from everlearn.errors import EverlearnError, MethodError, RecipeError, RunError
from everlearn.files import load_tensors, read_json
from everlearn.learner import ContinualLearner
from everlearn.methods.base import Stage
from everlearn.methods.penalties.ewc import EWC
from everlearn.run import optimizer_state
from everlearn.run.checks import checks
from everlearn.run.trainer import StageTrainer
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


pytestmark = pytest.mark.usefixtures("no_report")


def with_domain(of: Recipe, number: int, **train: Any) -> Recipe:
    """The recipe with arguments of one domain."""
    domains = of.model_dump(mode="json")["domains"]
    domains[number]["train"] = train
    return of.changed(domains=domains)


def test_a_domain_has_its_own_rate_steps_and_batch(tmp_path: Path) -> None:
    of = with_domain(recipe(tmp_path), 1, learning_rate="2e-4", max_steps=3, per_device_train_batch_size=4)
    assert of.train_of("first")["learning_rate"] == 1e-3
    assert of.train_of("second") == of.train | {
        "learning_rate": 2e-4,
        "max_steps": 3,
        "per_device_train_batch_size": 4,
    }
    learner = ContinualLearner(of)
    learner.run()
    stages = [learner.folder.stage(number, name) for number, name in ((1, "first"), (2, "second"))]
    assert [read_json(stage / "stage.json")["steps"] for stage in stages] == [STEPS, 3]
    rates = {line["stage"]: line["learning_rate"] for line in reversed(learner.folder.metrics()) if "loss" in line}
    assert rates == {1: 1e-3, 2: 2e-4}

    plan = make_plan(of, measure=False)
    assert [(domain.steps, domain.rows_per_step) for domain in plan.domains] == [(STEPS, 4), (3, 8)]
    lines = dict(plan.lines())
    assert lines["Training"] == f"{STEPS + 3} steps of 4 to 8 rows of 32: {(STEPS * 4 + 3 * 8) * 32:,} tokens"
    assert lines["Training on second"] == "learning_rate 0.0002, max_steps 3, per_device_train_batch_size 4"


def test_passes_of_a_domain_count_where_the_run_has_steps(tmp_path: Path) -> None:
    """`max_steps` of the run would silently decide over `num_train_epochs` of the domain."""
    of = with_domain(recipe(tmp_path), 1, num_train_epochs=2.0)
    learner = ContinualLearner(of)
    rows = learner.prepared("second").train.size
    assert rows is not None
    assert learner.steps("first") == STEPS
    assert learner.steps("second") == 2 * rows // 4 != STEPS
    both = with_domain(recipe(tmp_path), 1, num_train_epochs=2.0, max_steps=3)
    assert ContinualLearner(both).steps("second") == 3


def test_validate_shows_them(tmp_path: Path) -> None:
    of = with_domain(recipe(tmp_path), 1, learning_rate=2e-4)
    (tmp_path / "recipe.yaml").write_text(of.to_yaml(), encoding="utf-8")
    shown = {check.name: check for check in preflight(tmp_path / "recipe.yaml")}
    assert shown["'second': rows and steps"].detail.endswith(f"{STEPS} steps, learning_rate 0.0002")
    assert shown["'first': rows and steps"].detail.endswith(f"{STEPS} steps")


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (
            {"learning_rat": 1},
            r"`domains\.second\.train\.learning_rat` is not a name of TrainingArguments.*learning_rate",
        ),
        ({"learning_rate": -1.0}, r"`domains\.second\.train\.learning_rate` must be above 0 \(got -1\.0\)"),
        ({"bf16": True}, r"`domains\.second\.train\.bf16`: it is the same for a whole run; set `train\.bf16`"),
        ({"use_liger_kernel": True}, r"`domains\.second\.train\.use_liger_kernel` cannot be set: it replaces the loss"),
        ({"enable_jit_checkpoint": True}, r"enable_jit_checkpoint` cannot be set: a signal ends a run after its step"),
        ({"seed": 3}, r"`domains\.second\.train\.seed` cannot be set: set `run\.seed`"),
    ],
)
def test_they_are_checked_as_train_is(train: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=sentence):
        with_domain(recipe(tmp_path), 1, **train)


def test_general_text_has_none(tmp_path: Path) -> None:
    of = recipe(tmp_path).model_dump(mode="json")
    general = of["domains"][0] | {"name": "general", "train": {"max_steps": 1}}
    with pytest.raises(RecipeError, match=r"remove `general\.train`"):
        parse(of | {"general": general})


def test_a_carried_optimizer_goes_on_where_the_domain_before_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step of the second domain its state is that which the first ended with, and the rate is new."""
    seen: list[tuple[dict[str, torch.Tensor], float]] = []
    training_step = StageTrainer.training_step

    def look(self: StageTrainer, *args: Any, **options: Any) -> Any:
        if self.stage.index == 2 and not seen:
            state = {name: value.clone() for name, value in self.optimizer_state()[0].items()}
            seen.append((state, self.stage.learning_rate))
        return training_step(self, *args, **options)

    monkeypatch.setattr(StageTrainer, "training_step", look)
    of = with_domain(recipe(tmp_path, optimizer="carry"), 1, learning_rate=5e-4)
    learner = ContinualLearner(of)
    learner.run()
    folders = [learner.folder.stage(number, name) for number, name in ((1, "first"), (2, "second"))]
    first, second = (load_tensors(folder / optimizer_state.TENSORS) for folder in folders)
    (state, rate) = seen[0]
    assert state.keys() == first.keys()
    assert all(torch.equal(value, first[name]) for name, value in state.items())
    assert rate == 5e-4
    assert {float(value) for name, value in first.items() if name.startswith("step/")} == {STEPS}
    assert {float(value) for name, value in second.items() if name.startswith("step/")} == {2 * STEPS}
    facts = json.loads((folders[0] / optimizer_state.FACTS).read_text(encoding="utf-8"))
    assert facts["optimizer"] == "AdamW"

    fresh = recipe(tmp_path, run={"name": "fresh", "folder": str(tmp_path / "fresh")})
    ContinualLearner(with_domain(fresh, 1, learning_rate=5e-4)).run()
    one, other = tensors(learner.folder.path), tensors(tmp_path / "fresh")
    same = {name for name in other if torch.equal(one[name], other[name])}
    assert {name for name in other if name.startswith("stage-01")} <= same
    assert not any(name.startswith("stage-02") and name.endswith("dense.weight") for name in same)


@pytest.mark.parametrize("optimizer", ["reset", "carry"])
def test_what_a_method_measures_has_the_optimizers_room(
    tmp_path: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    end_domain = EWC.end_domain

    def look(self: EWC, stage: Stage) -> None:
        assert stage.optimizer is not None
        held.append(len(stage.optimizer.state))
        end_domain(self, stage)

    monkeypatch.setattr(EWC, "end_domain", look)
    ContinualLearner(recipe(tmp_path, method={"name": "ewc", "samples": 4}, optimizer=optimizer)).run()
    assert held == [0, 0]


def test_an_optimizer_without_a_state_is_carried(tmp_path: Path) -> None:
    """Plain SGD has none; and what is trained alone hands nothing on."""
    of = recipe(tmp_path, optimizer="carry", train={"optim": "sgd"}, evaluation={"alone": True})
    learner = ContinualLearner(of)
    learner.run()
    carried = optimizer_state.load(learner.folder.stage(1, "first"))
    assert carried[0] == {}
    assert carried[1]["optimizer"] == "SGD"
    assert not [*(learner.folder.path / "alone").rglob("optimizer.*")]


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("inc_lora", "trains other parameters in each domain"),
        ("elle", "trains other parameters in each domain"),
        ("hat", "trains other parameters in each domain"),
        ("dap_prompt", "trains other parameters in each domain"),
    ],
)
def test_methods_that_change_what_is_trained_refuse_it(method: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(MethodError, match=rf"`optimizer: carry`.*'{method}' {why}\. Set `optimizer: reset`\."):
        ContinualLearner(recipe(tmp_path, method=method, optimizer="carry")).check()


def test_one_optimizer_cannot_become_another(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"`domains\.second\.train\.optim`: `optimizer: carry` hands on"):
        with_domain(recipe(tmp_path, optimizer="carry"), 1, optim="sgd")
    model = torch.nn.Linear(3, 2)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    carried = optimizer_state.state_of(model, adam)
    cases: list[tuple[torch.nn.Module, type[torch.optim.Optimizer], str]] = [
        (torch.nn.Linear(3, 2), torch.optim.SGD, "with the optimizer AdamW, but this domain uses SGD"),
        (torch.nn.Linear(4, 2), torch.optim.AdamW, "does not fit 'weight'"),
        (torch.nn.Linear(3, 2, bias=False), torch.optim.AdamW, "does not fit 'bias'"),
    ]
    for other, optimizer, sentence in cases:
        with pytest.raises(RunError, match=sentence) as error:
            optimizer_state.restore(carried, other, optimizer(other.parameters(), lr=1.0))  # type: ignore[call-arg]
        assert isinstance(error.value, EverlearnError)
