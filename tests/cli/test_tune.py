"""``everlearn tune`` as a user types it: a small search, killed on the way, and what is refused."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the extra `tune` is not installed")

from cli_project import Project
from everlearn.config.recipe import load
from everlearn.learner import ContinualLearner
from everlearn.tuning import search

WORDS = ("tune", "recipe.yaml", "--methods", "mas", "--share", "0.5")


class Killed(BaseException):
    """A kill: nothing of the program's own runs after it."""


def small(everlearn: Project) -> Project:
    everlearn.recipe["domains"].append({"name": "c", "path": "c.jsonl", "validation": 0.2})
    everlearn.recipe["general"] = {"path": "general.jsonl", "validation": 0.2}
    everlearn.recipe["train"] = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 2e-3}
    everlearn.recipe["evaluation"] = {"blocks": 8, "end_task_seeds": 1}
    everlearn.recipe["method"] = {"name": "mas", "strength": 0.5, "samples": 4}
    return everlearn


def without_time(data: dict[str, Any]) -> dict[str, Any]:
    own = [{key: value for key, value in each.items() if key != "seconds"} for each in data["trials"]]
    return data | {"trials": own, "chosen": {key: value for key, value in data["chosen"].items() if key != "seconds"}}


def test_a_search_killed_twice_recommends_the_same(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also: a complete trial is a run; the recipe holds what was chosen; more trials go on from those there are."""
    small(everlearn)
    monkeypatch.setattr(search, "NEVER_STOPPED", 1)
    everlearn.recipe["run"]["name"] = "first"
    original, calls = ContinualLearner.train_stage, [0]

    def dying(self: ContinualLearner, *rest: Any) -> None:
        calls[0] += 1
        if calls[0] in (2, 9):
            raise Killed
        original(self, *rest)

    monkeypatch.setattr(ContinualLearner, "train_stage", dying)
    for _ in range(2):
        with pytest.raises(Killed):
            everlearn(*WORDS, "--trials", "3")
    killed = everlearn(*WORDS, "--trials", "3", "--json")
    assert killed.code == 0, killed.err
    monkeypatch.setattr(ContinualLearner, "train_stage", original)
    whole = everlearn(*WORDS, "--trials", "3", "--results", "whole", "--json")
    found, other = json.loads(killed.out), json.loads(whole.out)
    assert without_time(found) == without_time(other)
    assert [each["row"] for each in found["trials"]] == ["sequential"] * 3 + ["mas"] * 3
    assert all(each["state"] == "complete" for each in found["trials"] if each["row"] == "sequential")
    rates = [each["learning_rate"] for each in found["trials"]]
    assert rates[:3] == rates[3:], "rows are compared at the same points"
    assert not list((everlearn.folder / "tune/first/runs").glob("*-?")), "the folders of finished pilots are removed"

    more = json.loads(everlearn(*WORDS, "--trials", "4", "--results", "whole", "--json").out)
    assert [each["learning_rate"] for each in more["trials"]][:3] == rates[:3]
    assert len(more["trials"]) == 8

    chosen = found["chosen"]
    assert chosen["score"] == max(each["score"] for each in found["trials"] if each["state"] == "complete")
    recipe = load(everlearn.folder / "tune/first/recipe.yaml")
    assert recipe.train.items() >= (everlearn.recipe["train"] | {"learning_rate": chosen["learning_rate"]}).items()
    assert list(recipe.method) == chosen["methods"]
    assert recipe.run.name == "first-tuned"
    text = (everlearn.folder / "tune/first/recipe.yaml").read_text()
    assert all(f"# {sentence}\n" in text for sentence in found["verdict"])
    page = (everlearn.folder / "tune/first/index.html").read_text()
    assert found["verdict"][0] in page
    assert page.count("<svg") == 3, "the trials for wide and narrow screens, and the best of n"
    assert str(everlearn.folder) not in page

    # A complete trial is what `run` makes of the same keys.
    trial = next(each for each in found["trials"] if each["row"] == "mas" and each["state"] == "complete")
    everlearn.recipe["train"] |= {"learning_rate": trial["learning_rate"]}  # 4 steps: fewer than a pilot takes at least
    everlearn.recipe["method"] = trial["methods"]
    shutil.rmtree(everlearn.folder / "runs", ignore_errors=True)
    run = json.loads(everlearn("run", "recipe.yaml", "--json").out)
    results = json.loads((everlearn.run_folder / "results.json").read_text())["summary"]["bits_per_byte"]
    assert run["folder"]
    assert trial["learnt"] == results["learnt"]["mean"]["value"]
    assert trial["gained"][0] == results["gained"]["mean"]["value"]
    assert trial["drift"] == results["general_drift"]["general"]["value"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--share", "0"), "`--share` is 0"),
        (("--methods", "masss"), "mas"),
        (("--methods", "pool"), "no method that is trained on the domains in turn"),
        (("train.learning_rate=0",), "`train.learning_rate` must be above 0"),
        (("domains.0.path=nothing.jsonl",), "nothing.jsonl"),
        (("domains.0.validation=null", "domains.1.validation=null", "domains.2.validation=null"), "held-out text"),
    ],
)
def test_a_mistake_is_one_sentence(everlearn: Project, arguments: tuple[str, ...], says: str) -> None:
    small(everlearn)
    everlearn.fails("tune", "recipe.yaml", *arguments, says=(says,))


def test_it_goes_on_beside_runs_of_the_recipe_and_of_what_it_wrote(everlearn: Project) -> None:
    small(everlearn)
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["method"] = {"name": "sequential"}
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    found = everlearn("tune", "recipe.yaml", "--trials", "2", "--json")
    assert found.code == 0, found.err
    if json.loads(found.out)["chosen"]["score"] > 0:
        assert everlearn.call("run", "tune/first/recipe.yaml", "-q").code == 0
    assert everlearn("tune", "recipe.yaml", "--trials", "3", "-q").code == 0


def test_another_model_or_text_in_the_folder_is_refused(everlearn: Project) -> None:
    small(everlearn)
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["method"] = {"name": "sequential"}
    assert everlearn("tune", "recipe.yaml", "--trials", "1", "-q").code == 0
    everlearn.fails("tune", "recipe.yaml", "domains.0.path=b.jsonl", says=("differs in recipe",))
    everlearn.fails("tune", "recipe.yaml", f"model={everlearn.models / 'llama'}", says=("differs in recipe",))


def test_the_help_shows_how_methods_are_combined(everlearn: Project) -> None:
    for verb in ("tune", "sweep"):
        assert "[ewc,replay:share=0.1]" in "".join(everlearn(verb, "--help").out.split()).replace("│", "")


def test_another_search_in_the_folder_is_refused(everlearn: Project) -> None:
    small(everlearn)
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    assert everlearn("tune", "recipe.yaml", "--trials", "1", "--share", "0.5").code == 0
    everlearn.fails("tune", "recipe.yaml", "--trials", "1", "--share", "0.7", says=("differs in share", "`--results`"))
    everlearn.recipe["train"]["per_device_train_batch_size"] = 2
    everlearn.fails("tune", "recipe.yaml", "--trials", "1", "--share", "0.5", says=("differs in recipe",))


def test_a_trial_that_diverges_is_a_failed_one(everlearn: Project) -> None:
    small(everlearn)
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["train"] |= {"learning_rate": 1e30, "max_grad_norm": 0}
    everlearn.recipe["method"] = {"name": "sequential"}
    found = everlearn("tune", "recipe.yaml", "--trials", "1", "--json")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert data["chosen"] is None
    assert data["trials"][0]["state"] == "failed"
    assert "train.learning_rate" in data["trials"][0]["why"]
    assert not (everlearn.folder / "tune/first/recipe.yaml").exists()
