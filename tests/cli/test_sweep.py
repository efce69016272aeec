"""Commands that compare runs of a recipe: sweep and tune."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from typing import Any

import numpy as np
import pytest

from cli_project import Project
from everlearn.config.recipe import load
from everlearn.errors import EverlearnError, RecipeError
from everlearn.evaluation import text_cell
from everlearn.grid import RecipeTemplate, load_results, read_orders, read_variations
from everlearn.grid.arrangements import ALONE
from everlearn.learner import ContinualLearner
from everlearn.plugins import names
from everlearn.report import compare, verdict
from everlearn.run.folder import RunFolder
from everlearn.tuning import search

# -- ``everlearn sweep`` as a user types it: one small sweep, scenarios, runs that are equal, and what is refused ------


WORDS = ("sweep", "recipe.yaml", "--methods", "sequential,ewc:strength=10", "--set", "train.learning_rate=1e-4,3e-3")
NAMES = [f"{method}-learning_rate{rate}" for method in ("sequential", "ewc-strength10") for rate in ("0.0001", "0.003")]


def small(everlearn: Project) -> Project:
    everlearn.recipe["train"]["max_steps"] = 1
    everlearn.recipe["evaluation"] = {"blocks": 4}
    everlearn.recipe["method"] = {"name": "ewc", "samples": 4}
    return everlearn


def test_methods_times_settings(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every combination once; killed it goes on; what is finished is not made again; the recipe's options count."""
    small(everlearn)
    trained: list[tuple[str, int]] = []
    original = ContinualLearner.train_stage

    class Killed(BaseException):
        pass

    def dying(self: ContinualLearner, index: int, *rest: object) -> None:
        trained.append((self.folder.path.parent.name, index))
        if len(trained) == 4:
            raise Killed
        original(self, index, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ContinualLearner, "train_stage", dying)
    with pytest.raises(Killed):
        everlearn(*WORDS)
    said = f"1 of 4 runs is done; missing: {', '.join(f'{name}-order0-seed0' for name in NAMES[1:])}."
    part = json.loads(everlearn(*WORDS, "--show", "--json").out)
    assert part["complete"] == said
    assert [cell["state"] for cell in part["cells"]] == ["done", "missing", "missing", "missing"]
    for name in ("index.html", "part.md"):
        assert everlearn(*WORDS, "--show", "-q", "--output", name).code == 0
        assert said in (everlearn.folder / name).read_text(encoding="utf-8").replace("\\", "")
    of_runs = everlearn.folder / "sweep/first/runs.html"
    assert not of_runs.is_file() or said in of_runs.read_text(encoding="utf-8")
    assert said in " ".join(everlearn(*WORDS, "--show").out.split())
    first = everlearn(*WORDS, "--json")
    assert first.code == 0, first.err
    value = json.loads(first.out)
    cells = [f"{name}-order0-seed0" for name in NAMES]
    assert {cell["cell"]: cell["state"] for cell in value["cells"]} == dict.fromkeys(cells, "done")
    again = [(cells[1], 2)]  # the stage that was killed
    assert sorted(trained) == sorted([*((cell, index) for cell in cells for index in (1, 2)), *again])
    assert sorted(path.stem for path in (everlearn.folder / "sweep/first").glob("*.json")) == sorted(cells)
    run = RunFolder(everlearn.folder / "runs/sweep-first/ewc-strength10-learning_rate0.003-order0-seed0/run")
    assert run.recipe().train["learning_rate"] == 0.003
    assert run.recipe().method[0]["strength"] == 10
    assert run.recipe().method[0]["samples"] == 4

    ends = [line["numbers"]["bits"]["value"] for line in value["lines"]]
    assert ends == sorted(ends)  # ranked, the best first
    assert {line["entry"] for line in value["lines"]} == set(NAMES)
    index = (everlearn.folder / "sweep/first/index.html").read_text()
    runs = [everlearn.folder / "runs/sweep-first" / cell / "run" for cell in sorted(cells)]
    assert value["complete"] == "All 4 runs are done."
    assert "runs are done" not in index  # nothing is missing
    of_runs = [each for each in verdict(compare(runs)) if not each.startswith("Besides their methods the runs differ")]
    (dear,) = (each for each in value["verdict"] if "times the compute of Sequential" in each)
    assert "times the compute of Sequential" in (everlearn.folder / "sweep/first/runs.html").read_text()
    alike = [each for each in value["verdict"] if each != dear]  # which only the cells of a grid know
    assert alike[2:] == of_runs[2:], "as in the report of the runs; the first two name one of two equals"
    few = json.loads(everlearn(*WORDS[:2], "--methods", "ewc", "--show", "--json").out)
    assert few["verdict"] == value["verdict"], "about all rows of the table, whichever are named"
    assert value["verdict"][0].replace("'", "&#39;") in index
    assert 'id="verdict"' in index
    assert "first: 4 ways to learn 2 domains" in index
    assert "EWC (strength 10) · learning_rate 0.003" in index
    page = (everlearn.folder / "sweep/first/runs.html").read_text()
    assert str(everlearn.folder) not in index + page, "where files lie on the machine is nobody's business"
    assert "sweep-first/ewc-strength10-learning_rate0.003-order0-seed0/run" in page

    # another order and another seed of one of them are cells of the same table; the base model is not measured again
    trained.clear()
    more = everlearn(*WORDS[:2], "--methods", "none,ewc", "--orders", "b,a", "--seeds", "3", "--json")
    assert more.code == 0, more.err
    assert trained == [("ewc-order1-seed3", 1), ("ewc-order1-seed3", 2)]
    found = {cell.name: cell for cell in load_results(everlearn.folder / "sweep/first")}
    assert found["ewc-order1-seed3"].domains == ["b", "a"]
    assert found["ewc-order1-seed3"].grid.options == {"samples": 4}
    base, other = (found[name].matrices["bits_per_byte"].cell(0, "a").value for name in ("none", cells[0]))
    assert base == other
    shown = everlearn(*WORDS[:2], "--show")
    assert "Learning" not in shown.err
    assert shown.out.index("Held-out text") < shown.out.index("│ EWC (strength 10)")

    # a changed recipe is another table
    everlearn.recipe["train"] |= {"max_steps": 2}
    everlearn.fails(*WORDS, says=("other settings (`train.max_steps`: 1 there, 2 here)", "--results"))
    everlearn.recipe["train"] |= {"max_steps": 1}
    everlearn.recipe["method"]["samples"] = 5
    everlearn.fails(
        *WORDS[:2], "--methods", "ewc", "--orders", "b,a", "--seeds", "3", says=("other options of 'ewc'", "--results")
    )


def test_a_stopped_sweep_says_what_is_kept(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    original, count = ContinualLearner.train_stage, itertools.count(1)

    def stopped(self: ContinualLearner, *rest: object) -> None:
        if next(count) == 3:
            raise KeyboardInterrupt
        original(self, *rest)  # type: ignore[arg-type]

    small(everlearn)
    monkeypatch.setattr(ContinualLearner, "train_stage", stopped)
    outcome = everlearn(*WORDS)
    assert outcome.code == 130
    said = " ".join(outcome.err.split())
    assert "Stopped. 1 of 4 runs is done; missing: sequential-learning_rate0.003-order0-seed0, ewc-" in said
    assert "Results are in sweep/first" in said
    assert "start the same command again" in said


def test_a_dry_run_lists_the_cells_with_their_times(everlearn: Project) -> None:
    small(everlearn)
    words = ("sweep", "recipe.yaml", "--methods", "none,sequential,ewc", "--seeds", "1,2")
    assert everlearn(*words[:2], "--methods", "sequential", "--seeds", "1", "-q").code == 0
    runs, results = (sorted(everlearn.folder.glob(f"{name}/**/*")) for name in ("runs", "sweep"))
    shown = everlearn(*words, "--dry-run")
    assert shown.code == 0, shown.err
    text = " ".join(shown.out.split())
    assert "1 of 5 runs is done; missing: none, ewc-order0-seed1" in text
    assert "All that is missing" in text
    plan = json.loads(everlearn(*words, "--dry-run", "--json").out)
    cells = {cell["cell"]: cell for cell in plan["cells"]}
    assert list(cells) == [
        "none",
        "sequential-order0-seed1",
        "ewc-order0-seed1",
        *(f"{m}-order0-seed2" for m in ("sequential", "ewc")),
    ]
    assert cells["sequential-order0-seed1"]["high"] == 0
    others = [cell for name, cell in cells.items() if name != "sequential-order0-seed1"]
    assert all(0 < cell["low"] <= cell["high"] for cell in others)
    assert cells["ewc-order0-seed1"]["high"] == cells["ewc-order0-seed2"]["high"] > cells["none"]["high"]
    assert plan["high"] == pytest.approx(sum(cell["high"] for cell in others))
    for name, before in (("runs", runs), ("sweep", results)):
        assert sorted(everlearn.folder.glob(f"{name}/**/*")) == before  # nothing was made


def test_a_threshold_and_its_picture(everlearn: Project) -> None:
    """Nothing held back is plain training, and the page shows the scores along the threshold."""
    small(everlearn)
    done = everlearn(
        "sweep", "recipe.yaml", "--methods", "sequential,migu", "--set", "method.migu.threshold=0,0.5,0.9", "--json"
    )
    assert done.code == 0, done.err
    lines = {line["entry"]: line["numbers"]["bits"]["value"] for line in json.loads(done.out)["lines"]}
    assert set(lines) == {"sequential", "migu-threshold0", "migu-threshold0.5", "migu-threshold0.9"}
    assert lines["migu-threshold0"] == lines["sequential"]
    assert lines["migu-threshold0.9"] != lines["sequential"]
    page = (everlearn.folder / "sweep/first/index.html").read_text(encoding="utf-8")
    assert "<h2>By threshold</h2>" in page
    assert "Forgotten (bits per byte) by threshold." in page


def test_orders_have_numbers_of_their_own(everlearn: Project) -> None:
    names = ["a", "b", "c"]
    assert read_orders("given;c,b,a;given", names) == [("a", "b", "c"), ("c", "b", "a")]
    assert len(read_orders("all", names)) == 6
    drawn = read_orders("random:4", names)
    assert len(set(drawn)) == 4
    assert read_orders("random:2", names) == drawn[:2]
    assert {tuple(sorted(order)) for order in drawn} == {("a", "b", "c")}
    with pytest.raises(EverlearnError, match=r"5,040 orders of 7 domains.*random"):
        read_orders("all", list("abcdefg"))
    everlearn.recipe["domains"].append({"name": "c", "path": "c.jsonl"})
    everlearn("env")
    recipe = load(everlearn.folder / "recipe.yaml")
    whole = RecipeTemplate(recipe, "x", read_orders("all", names))
    assert list(whole.orders) == [0, 1, 2, 3, 4, 5]
    assert RecipeTemplate(recipe, "x", [("c", "b", "a")]).orders == {5: ("c", "b", "a")}


def test_names_of_entries_can_be_names_of_files(everlearn: Project) -> None:
    everlearn.recipe["method"] = ["migu", "replay"]
    everlearn("env")
    suite = RecipeTemplate(load(everlearn.folder / "recipe.yaml"), "x")
    own = read_variations(None, (), suite)[0]
    assert (own.name, [spec["name"] for spec in own.methods]) == ("migu-replay", ["migu", "replay"])
    assert own.title == "MIGU + Replay"
    text = "{name: ewc, strength: 3}, [das, ewc:strength=3:samples=8], none"
    ways = read_variations(text, ["train.optim_args=a/b,a:b", "data.block_size=32"], suite)
    names = [way.name for way in ways]
    assert names[0].startswith("ewc-strength3-optim_argsa_b-")
    assert names[-1] == "none-data.block_size32"
    assert len(set(names)) == len(names) == 2 + 2 + 1
    assert ways[0].changes == {"train.optim_args": "a/b", "data.block_size": 32}
    assert all(re.fullmatch(r"[a-z0-9_.-]+", name) for name in names)
    long = read_variations("ewc", [f"train.optim_args={'x' * 400}"], suite)[0]
    assert len(long.name) < 120


def test_equal_compute_takes_what_a_method_runs_from_its_steps(everlearn: Project) -> None:
    small(everlearn).recipe["train"]["max_steps"] = 8
    words = ("sweep", "recipe.yaml", "--methods", "sequential,ewc:samples=8", "--equal-compute", "--output", "t.md")
    outcome = everlearn(*words)
    assert outcome.code == 0, outcome.err
    cells = {cell.grid.row: cell for cell in load_results(everlearn.folder / "sweep/first")}
    # 8 of the 32 rows of a domain are the Fisher information's: 6 steps are left.
    assert set(cells) == {"sequential", "ewc-samples8-max_steps6"}
    assert cells["sequential"].grid.extra_tokens == 0
    ewc = cells["ewc-samples8-max_steps6"]
    assert ewc.tokens + (ewc.grid.extra_tokens or 0) == pytest.approx(cells["sequential"].tokens)
    assert "| 1.00× |" in (everlearn.folder / "t.md").read_text()


def lines(path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_all_scenarios_learn_from_equally_many_tokens(everlearn: Project) -> None:
    everlearn.recipe["train"]["max_steps"] = 2
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


LONGEST = 128
"""Tokens that the tiny models of a project read: what `data.block_size` is when a recipe does not set it."""


@pytest.mark.parametrize(
    ("model", "explicit"),
    [
        (
            "roberta",
            {"data": {"block_size": LONGEST, "isolate_documents": False, "max_leaked": 0.9, "mask_probability": 0.15}},
        ),
        ("llama", {"data": {"isolate_documents": True, "mask_probability": 0.3}, "evaluation": {"end_task_seeds": 5}}),
    ],
)
def test_what_is_written_down_and_has_no_effect_changes_no_verdict(
    everlearn: Project, model: str, explicit: dict[str, dict[str, object]]
) -> None:
    everlearn.recipe |= {"model": str(everlearn.models / model), "train": {"max_steps": 1}}
    everlearn.recipe["data"].pop("block_size")
    everlearn.recipe["evaluation"] = {"blocks": 4}
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    for group, keys in explicit.items():
        everlearn.recipe[group] |= keys
    everlearn.recipe["run"]["name"] = "second"
    everlearn.recipe["model"] = {"path": everlearn.recipe["model"], "tokenizer": everlearn.recipe["model"]}
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    report = json.loads(everlearn("report", "runs/first", "runs/second", "--json").out)
    said = " ".join(report["verdict"])
    assert "not of one model" not in said, said
    assert "did not see and spend the same" not in said
    assert "differ in" not in said
    everlearn.recipe["data"]["block_size"] = 32
    everlearn.recipe["run"]["name"] = "third"
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    said = " ".join(json.loads(everlearn("report", "runs/first", "runs/third", "--json").out)["verdict"])
    assert "data.block_size" in said


def test_a_budget_is_tokens_of_each_domain(everlearn: Project) -> None:
    small(everlearn)
    words = ("sweep", "recipe.yaml", "--methods", "sequential", "--dry-run", "--budget")
    rows = everlearn.recipe["train"]["per_device_train_batch_size"]
    step = rows * everlearn.recipe["data"]["block_size"]
    assert everlearn("sweep", "recipe.yaml", "--methods", "sequential", "--budget", str(2 * step + 1), "-q").code == 0
    (cell,) = load_results(everlearn.folder / "sweep" / "first")
    assert cell.tokens == 2 * step * len(cell.domains)
    everlearn.fails(*words, str(step - 1), says=("`--budget`", "less than one step"))
    everlearn.fails(
        *words, str(step), "--set", "train.max_steps=1,2", says=("`--budget` gives all rows", "`train.max_steps`")
    )
    everlearn.recipe["domains"][0]["train"] = {"max_steps": 1}
    everlearn.fails(*words, str(step), says=("`--budget` sets `train.max_steps`", "domain 'a'"))


# -- ``everlearn tune`` as a user types it: a small search, killed on the way, and what is refused ---------------------


WORDS_TUNE = ("tune", "recipe.yaml", "--methods", "mas", "--share", "0.5")


class Killed(BaseException):
    """A kill: nothing of the program's own runs after it."""


def small_of_tune(everlearn: Project) -> Project:
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
    small_of_tune(everlearn)
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
            everlearn(*WORDS_TUNE, "--trials", "3")
    killed = everlearn(*WORDS_TUNE, "--trials", "3", "--json")
    assert killed.code == 0, killed.err
    monkeypatch.setattr(ContinualLearner, "train_stage", original)
    whole = everlearn(*WORDS_TUNE, "--trials", "3", "--results", "whole", "--json")
    found, other = json.loads(killed.out), json.loads(whole.out)
    assert without_time(found) == without_time(other)
    assert [each["row"] for each in found["trials"]] == ["sequential"] * 3 + ["mas"] * 3
    assert all(each["state"] == "complete" for each in found["trials"] if each["row"] == "sequential")
    rates = [each["learning_rate"] for each in found["trials"]]
    assert rates[:3] == rates[3:], "rows are compared at the same points"
    assert not list((everlearn.folder / "tune/first/runs").glob("*-?")), "the folders of finished pilots are removed"

    more = json.loads(everlearn(*WORDS_TUNE, "--trials", "4", "--results", "whole", "--json").out)
    assert [each["learning_rate"] for each in more["trials"]][:3] == rates[:3]
    assert len(more["trials"]) == 8

    chosen = found["chosen"]
    worth = (False, None, True)  # the highest score of the best that the rule of reports says
    complete = [each for each in found["trials"] if each["state"] == "complete"]
    assert chosen == max(complete, key=lambda each: (worth.index(each["worth_taking"]), each["score"]))
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
    small_of_tune(everlearn)
    everlearn.fails("tune", "recipe.yaml", *arguments, says=(says,))


def test_it_goes_on_beside_runs_of_the_recipe_and_of_what_it_wrote(everlearn: Project) -> None:
    small_of_tune(everlearn)
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["method"] = {"name": "sequential"}
    assert everlearn("run", "recipe.yaml", "-q").code == 0
    found = everlearn("tune", "recipe.yaml", "--trials", "2", "--json")
    assert found.code == 0, found.err
    if json.loads(found.out)["chosen"]["score"] > 0:
        assert everlearn.call("run", "tune/first/recipe.yaml", "-q").code == 0
    assert everlearn("tune", "recipe.yaml", "--trials", "3", "-q").code == 0


def test_another_model_or_text_in_the_folder_is_refused(everlearn: Project) -> None:
    small_of_tune(everlearn)
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["method"] = {"name": "sequential"}
    assert everlearn("tune", "recipe.yaml", "--trials", "1", "-q").code == 0
    everlearn.fails("tune", "recipe.yaml", "domains.0.path=b.jsonl", says=("differs in recipe",))
    everlearn.fails("tune", "recipe.yaml", f"model={everlearn.models / 'llama'}", says=("differs in recipe",))


def test_the_help_shows_how_methods_are_combined(everlearn: Project) -> None:
    for verb in ("tune", "sweep"):
        assert "[ewc,replay:share=0.1]" in "".join(everlearn(verb, "--help").out.split()).replace("│", "")


def test_the_help_of_bench_lists_the_suites(everlearn: Project) -> None:
    words = "".join(everlearn("bench", "--help").out.split()).replace("│", "")
    assert ",".join(names("suites")) in words


def test_another_search_in_the_folder_is_refused(everlearn: Project) -> None:
    small_of_tune(everlearn)
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    assert everlearn("tune", "recipe.yaml", "--trials", "1", "--share", "0.5").code == 0
    everlearn.fails("tune", "recipe.yaml", "--trials", "1", "--share", "0.7", says=("differs in share", "`--results`"))
    everlearn.recipe["train"]["per_device_train_batch_size"] = 2
    everlearn.fails("tune", "recipe.yaml", "--trials", "1", "--share", "0.5", says=("differs in recipe",))


def test_a_trial_that_diverges_is_a_failed_one(everlearn: Project) -> None:
    small_of_tune(everlearn)
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
