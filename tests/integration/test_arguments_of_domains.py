"""Training arguments of a domain of its own, and an optimizer that goes on from domain to domain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import STEPS, recipe, tensors

from everlearn.commands.plan import make_plan
from everlearn.commands.validate import preflight
from everlearn.config.recipe import Recipe, parse
from everlearn.errors import EverlearnError, MethodError, RecipeError, RunError
from everlearn.files import load_tensors, read_json
from everlearn.learner import ContinualLearner
from everlearn.run import optimizer_state
from everlearn.run.trainer import StageTrainer

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
    assert lines["Of which second"] == "learning_rate 0.0002, max_steps 3, per_device_train_batch_size 4"


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
        ({"torch_compile_mode": "default"}, r"`domains\.second\.train\.torch_compile_mode` cannot be set: the loss"),
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
