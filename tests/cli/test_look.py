"""The commands that only read: methods, inspect, schema, init, env, report; and validate and plan."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from cli_project import Project, write_jsonl
from everlearn.commands import plan as plan_command
from everlearn.commands.recommendation import METHOD
from everlearn.config.recipe import Recipe, load
from everlearn.methods import build, names


def test_methods_lists_every_method_with_what_it_needs(everlearn: Project) -> None:
    outcome = everlearn("methods")
    assert outcome.code == 0
    described = {entry["name"]: entry for entry in json.loads(everlearn("methods", "--json").out)}
    assert sorted(described) == names()
    # A narrow table folds names and titles, but none is cut.
    shown = "".join(outcome.out.split())
    for name, entry in described.items():
        assert name.split("_")[0] in shown
        assert entry["title"].split()[0] in shown
    assert described["replay"]["needs"]["old_data"] is True
    assert described["ewc"]["needs"]["importance_pass"] is True


@pytest.mark.parametrize("name", names())
def test_a_method_shows_every_option_with_its_default_and_meaning(everlearn: Project, name: str) -> None:
    text = " ".join(everlearn("methods", name).out.split())
    entry = json.loads(everlearn("methods", name, "--json").out)
    assert [option["name"] for option in entry["options"]] == list(build(name).Config.model_fields)
    for option in entry["options"]:
        assert option["description"]
        assert option["name"] in text


def test_inspect_reads_the_configuration_alone(everlearn: Project) -> None:
    folder = everlearn.folder / "weightless"
    folder.mkdir()
    config = json.loads((everlearn.models / "llama" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    found = json.loads(everlearn("inspect", "weightless", "--method", "das", "--method", "migu", "--json").out)
    layers, hidden, wide, heads = 2, 32, 64, 4
    assert found["units"] == layers * (heads + wide + hidden)
    assert found["kind"] == "decoder"
    assert sum(group["parameters"] for group in found["groups"]) == found["parameters"]
    assert set(found["methods"]) == {"das", "migu"}
    # Every projection of attention and feed-forward is reached: q and o are 32 x 32, k and v 16 x 32, three of 64 x 32.
    projections = layers * (2 * hidden * hidden + 2 * 16 * hidden + 3 * hidden * wide)
    assert found["reached_by_row_masks"] == pytest.approx(projections / found["parameters"])
    shown = everlearn("inspect", "weightless")
    assert shown.code == 0
    assert "layers.0–1.attention.heads" in shown.out


def test_inspect_says_which_method_does_not_work(everlearn: Project) -> None:
    model = str(everlearn.models / "t5")
    asked = [part for name in ("elle", "das", "ewc") for part in ("--method", name)]
    found = json.loads(everlearn("inspect", model, *asked, "--json").out)["methods"]
    assert "cannot grow a 't5' model" in found["elle"]["refused"]
    assert "Set `contrast: 0`" in found["das"]["refused"]
    assert found["ewc"]["memory_bytes"] > 0
    shown = " ".join(everlearn("inspect", model, *asked).out.split())
    assert "elle: does not work here. Method 'elle' cannot grow a 't5' model; it can grow bert," in shown
    for model, name in (("roberta", "das_wiki_kl"), ("roberta", "dap_prompt"), ("llama", "elle")):
        found = json.loads(everlearn("inspect", str(everlearn.models / model), "--method", name, "--json").out)
        assert "memory_bytes" in found["methods"][name], "what a recipe decides is left open"


def test_env_names_the_versions(everlearn: Project) -> None:
    facts = json.loads(everlearn("env", "--json").out)
    assert {"torch", "transformers", "peft"} <= facts["packages"].keys()
    assert facts["packages"]["torch"] in everlearn("env").out


def test_version(everlearn: Project) -> None:
    import everlearn as package

    outcome = everlearn("--version")
    assert (outcome.code, outcome.out) == (0, f"everlearn {package.__version__}\n")


def test_schema_knows_every_key_and_every_method(everlearn: Project) -> None:
    schema = json.loads(everlearn("schema").out)
    assert set(schema["properties"]) == set(Recipe.model_fields)
    for name in names():
        own = schema["$defs"][f"method_{name}"]
        assert set(own["properties"]) == {"name", *build(name).config.model_dump()}
        assert own["properties"]["name"]["const"] == name
        assert own["additionalProperties"] is False
    assert "max_steps" in schema["properties"]["train"]["properties"]
    assert "output_dir" not in schema["properties"]["train"]["properties"]
    _references_resolve(schema, schema)


def _references_resolve(value: object, schema: dict) -> None:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            assert reference.removeprefix("#/$defs/") in schema["$defs"]
        for item in value.values():
            _references_resolve(item, schema)
    elif isinstance(value, list):
        for item in value:
            _references_resolve(item, schema)


def test_validate_marks_no_check_whose_note_is_not_shown(everlearn: Project) -> None:
    everlearn.recipe["domains"][1]["path"] = everlearn.recipe["domains"][0]["path"]
    everlearn.recipe["general"] = {"path": "few.txt"}
    Path("few.txt").write_text("A few words.\n")
    outcome = everlearn("validate", "recipe.yaml")
    assert "held-out text not in training text  ok" in outcome.out
    assert "note" not in outcome.out.replace("not reached", "").split("Files")[0], outcome.out


def test_validate_runs_every_check(everlearn: Project) -> None:
    everlearn.recipe["end_tasks"] = [{"name": "topics", "train": "train.jsonl", "test": "test.jsonl"}]
    everlearn.recipe["general"] = {"path": "general.jsonl", "validation": 0.2}
    outcome = everlearn("validate", "recipe.yaml")
    assert outcome.code == 0, outcome.out
    assert "Every check passed. Next: everlearn plan recipe.yaml" in outcome.out
    assert "Checking recipe, model and data" in outcome.err
    outcome = everlearn("validate", "recipe.yaml", "run.notes=[my words]")
    assert "Every check passed. Next: everlearn plan recipe.yaml 'run.notes=[my words]'" in outcome.out
    result = json.loads(everlearn("validate", "recipe.yaml", "--json").out)
    assert result["ok"] is True
    names = [check["name"] for check in result["checks"]]
    for expected in ("tokenizer round trip", "methods fit", "'a': rows and steps", "disk space", "run folder"):
        assert expected in names
    assert not Path("runs").exists()


def test_validate_finds_several_mistakes_at_once(everlearn: Project) -> None:
    (everlearn.folder / "a.jsonl").write_text("")
    everlearn.recipe["domains"][1]["text_column"] = "body"
    everlearn.recipe["train"] |= {"bf16": True, "fp16": True}
    everlearn.recipe["method"] = {"name": "replay", "source": "general"}
    outcome = everlearn("validate", "recipe.yaml", "--json")
    assert outcome.code == 2
    failed = {check["name"]: check["detail"] for check in json.loads(outcome.out)["checks"] if check["ok"] is False}
    assert failed.keys() == {
        "training arguments",
        "methods fit",
        "'a': files and columns",
        "'b': files and columns",
    }
    assert "fp16" in failed["training arguments"]
    assert "'body'" in failed["'b': files and columns"]
    unreached = [check["name"] for check in json.loads(outcome.out)["checks"] if check["ok"] is None]
    assert "disk space" in unreached


def test_validate_says_what_a_wrong_recipe_lacks(everlearn: Project) -> None:
    outcome = everlearn("validate", "recipe.yaml", "data.block_sze=3")
    assert outcome.code == 2
    assert "block_size" in outcome.out
    assert "Traceback" not in outcome.err


def test_plan_counts_exactly(everlearn: Project) -> None:
    everlearn.recipe["method"] = {"name": "ewc", "samples": 8}
    plan = json.loads(everlearn("plan", "recipe.yaml", "--no-measure", "--json").out)
    assert plan["steps"] == 8
    assert plan["rows_per_step"] == 4
    first = plan["domains"][0]
    assert first["rows"] == first["tokens"] // 32
    assert first["passes"] == pytest.approx(16 / first["rows"])
    assert plan["memory"]["weights"] == 4 * plan["parameters"]
    assert plan["methods"]["ewc"]["memory_bytes"] == 8 * plan["parameters"]
    steps, measuring = plan["memory"], plan["measuring"]
    assert steps["gradients"] == 4 * plan["parameters"]
    assert "gradients" not in measuring
    assert steps["optimizer"] >= 8 * plan["parameters"]
    assert "optimizer" not in measuring, "its state is freed before"
    assert measuring["what is measured"] == plan["methods"]["ewc"]["measuring_bytes"] > 8 * plan["parameters"]
    assert plan["peak"] == max(sum(measuring.values()), sum(steps.values()))
    assert plan["plain"] is None
    assert not Path("runs").exists()


def test_plan_says_what_memory_peaks_at(everlearn: Project) -> None:
    """Two methods measure one after the other; what none measures has its peak in a step."""
    everlearn.recipe["method"] = ["ewc", {"name": "replay", "share": 0.1}]
    everlearn.recipe["train"] |= {"bf16": True}
    plan = json.loads(everlearn("plan", "recipe.yaml", "--no-measure", "--json").out)
    assert plan["measuring"]["activations"] > plan["memory"]["activations"], "measured in float32"
    assert "between domains" in everlearn("plan", "recipe.yaml", "--no-measure").out
    everlearn.recipe["method"] = "l2"
    plan = json.loads(everlearn("plan", "recipe.yaml", "--no-measure", "--json").out)
    assert plan["measuring"] == {}
    assert plan["peak"] == sum(plan["memory"].values())
    assert "between domains" not in everlearn("plan", "recipe.yaml", "--no-measure").out


def test_plan_times_one_step_where_steps_are_slow(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps are run instead of four, the first as a warm-up; so fastest and slowest are the same."""
    for enough, alike in ((0.0, True), (1e9, False)):
        monkeypatch.setattr(plan_command, "ENOUGH", enough)
        plan = json.loads(everlearn("plan", "recipe.yaml", "--json").out)
        for timing in (plan["plain"], plan["protected"]):
            assert timing["seconds_per_step"] > 0
            assert (timing["low"] == timing["high"]) is alike


def test_plan_says_when_measured_times_are_uncertain(everlearn: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for slowest, said in ((1.2, False), (1.6, True)):
        monkeypatch.setattr(plan_command, "_step_seconds", lambda *_, slowest=slowest: [1.0, 1.1, slowest])
        plan = json.loads(everlearn("plan", "recipe.yaml", "method=sequential", "--json").out)
        assert any("slowest took 1.6 times" in note for note in plan["notes"]) is said


def test_plan_for_another_machine_reads_no_weight(everlearn: Project) -> None:
    """A folder with a configuration and a tokenizer is enough; the exit code says whether it fits."""
    base = Path(everlearn.recipe["model"])
    shutil.copytree(base, "weightless", ignore=shutil.ignore_patterns("*.safetensors"))
    everlearn.recipe["model"] = "weightless"
    outcome = everlearn("plan", "recipe.yaml", "--devices", "4", "--memory", "80GB", "--json")
    assert outcome.code == 0, outcome.err
    plan = json.loads(outcome.out)
    assert (plan["devices"], plan["distribution"], plan["plain"]) == (4, "DDP", None)
    assert plan["rows_per_step"] == 16, "the batches of four devices"
    assert plan["memory"]["buckets of gradients (DDP)"] == 4 * plan["parameters"]
    assert plan["verdict"]["fits"] is True

    outcome = everlearn("plan", "recipe.yaml", "--devices", "4", "--memory", "1MB")
    assert outcome.code == 2
    assert outcome.out.startswith("Does not fit: each of 4 devices would hold about")
    everlearn.fails("plan", "recipe.yaml", "--memory", "80", says=("`--memory` is '80'", "like 80GB"))


def test_plan_measures_what_init_writes_in_mixed_precision(everlearn: Project) -> None:
    """As a run does, it takes mixed precision off the model before methods measure."""
    everlearn.recipe |= {
        "model": str(everlearn.models / "llama"),
        "method": [{**each, "samples": 4} for each in METHOD],
    }
    everlearn.recipe["general"] = {"path": "general.jsonl", "validation": 0.2}
    everlearn.recipe["train"] |= {"bf16": True}
    outcome = everlearn("plan", "recipe.yaml", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["protected"] is not None


def test_plan_of_a_frozen_model(everlearn: Project) -> None:
    """Gradients and Adam are of the adapters alone; a variant is called by its own name."""
    everlearn.recipe["method"] = ["demix", "kd"]
    plan = json.loads(everlearn("plan", "recipe.yaml", "--no-measure", "--json").out)
    assert list(plan["methods"]) == ["demix", "kd"]
    assert plan["trainable"] == plan["methods"]["demix"]["parameters"] < plan["parameters"]
    assert plan["memory"]["optimizer"] == 8 * plan["trainable"] + 4, "two moments of each, and a step"
    assert "1.33 extra passes per step" in everlearn("plan", "recipe.yaml", "--no-measure").out


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sequential", {}),
        ("sequential", {"train.save_steps": 0.3, "train.save_total_limit": 1}),
        ("sequential", {"train.save_strategy": "no"}),
        ("demix", {"train.save_strategy": "epoch"}),
        ("inc_lora", {"evaluation.alone": True}),
        ("hat", {}),
        ("elle", {"method": {"name": "elle", "grow_first": True, "capacity": 1}}),
    ],
)
def test_plan_of_the_disk_is_what_a_run_takes(
    everlearn: Project, monkeypatch: pytest.MonkeyPatch, method: str, options: dict[str, Any]
) -> None:
    """A run folder is at its largest just before something is removed from it, or at the end."""
    everlearn.recipe["method"] = method
    everlearn.saves()
    everlearn.recipe["train"] |= {"max_steps": 5}  # steps 2 and 4, and the last one
    for key, value in options.items():
        group, _, name = key.partition(".")
        everlearn.recipe[group] = {**everlearn.recipe[group], name: value} if name else value
    plan = json.loads(everlearn("plan", "recipe.yaml", "--no-measure", "--json").out)
    sizes = []

    def measure() -> None:
        weights = [path for path in everlearn.run_folder.rglob("*.safetensors") if "evaluation" not in path.parts]
        found = [*map(load_file, weights), *map(torch.load, everlearn.run_folder.rglob("optimizer.pt"))]
        sizes.append(sum(map(_bytes, found)))

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **options: (measure(), remove(*args, **options)))
    ran = everlearn("run", "recipe.yaml")
    assert ran.code == 0, ran.err
    measure()
    # A growing model is taken to grow by the same share each time, which is not quite what heads and layers do.
    assert plan["disk"] == pytest.approx(max(sizes), rel=0.1 if method == "elle" else 0.01)


def _bytes(value: object) -> int:
    """Of the tensors in it: in files of tiny models, what is written around tensors counts for too much."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value.values())) if isinstance(value, dict) else 0


@pytest.mark.parametrize("method", ["sequential", "demix", "inc_lora", "hat", "elle"])
def test_plan_of_the_parameters(everlearn: Project, method: str) -> None:
    """Some methods add to the model, of which everything is trained or what they add alone; ELLE's model grows."""
    everlearn.recipe["method"] = method
    plan = json.loads(everlearn("plan", "recipe.yaml", "--no-measure", "--json").out)
    weights, added = plan["parameters"], plan["methods"][method]["parameters"]
    assert plan["trainable"] == (added if method in ("demix", "inc_lora") else weights + added)
    assert plan["memory"]["weights"] == 4 * (weights + added)
    shown = everlearn("plan", "recipe.yaml", "--no-measure").out
    assert f"{weights:,} in the base model; {plan['trainable']:,} trained in the last stage" in shown


def test_plan_measures_without_leaving_anything(everlearn: Project) -> None:
    everlearn.recipe["method"] = {"name": "das", "samples": 8}
    plan = json.loads(everlearn("plan", "recipe.yaml", "--json").out)
    for timing in (plan["plain"], plan["protected"]):
        assert 0 < timing["low"] <= timing["high"]
    assert "Training time" in everlearn("plan", "recipe.yaml").out
    assert not Path("runs").exists()


def test_a_run_its_report_and_one_more_domain(everlearn: Project) -> None:
    ran = everlearn("run", "recipe.yaml")
    assert ran.code == 0, ran.err
    assert "report.html" in ran.out
    assert "Learnt" in ran.out
    assert (everlearn.run_folder / "report.html").is_file()
    assert everlearn("report", "runs/first").code == 0
    names = ("page.html", "page.md", "page.tex", "page.csv", "page.json")
    assert everlearn("report", "runs/first", *itertools.chain(*(("-o", name) for name in names))).code == 0
    assert all(Path(name).stat().st_size > 0 for name in names)
    assert "<html" in Path("page.html").read_text()
    assert everlearn("report", "runs/first", "--format", "terminal", "--output", "page.txt").code == 0
    assert "Learnt" in Path("page.txt").read_text()
    assert json.loads(everlearn("report", "runs/first", "--json").out)["domains"] == ["a", "b"]
    judged = json.loads(everlearn("report", "runs/first", "--tolerate", "0.5", "--json").out)
    assert judged["tolerate"]["general_drift"] == 0.5
    assert "0.5 bits/byte (`report.tolerate`)" in " ".join(judged["verdict"])
    everlearn.fails("report", "runs/first", "--tolerate", "nan", says=("--tolerate", "0 or more"))
    for path in ("a.jsonl", "b.jsonl"):  # the old data are gone
        (everlearn.folder / path).unlink()
    (everlearn.folder / "cache").rename(everlearn.folder / "old-cache")
    rows = [json.loads(line) for line in Path("c.jsonl").read_text().splitlines()]
    write_jsonl(Path("c.jsonl"), [{"body": row["text"]} for row in rows])
    write_jsonl(Path("held.jsonl"), [{"body": row["text"]} for row in rows[:40]])
    for part in ("train", "test"):
        rows = [json.loads(line) for line in Path(f"{part}.jsonl").read_text().splitlines()]
        write_jsonl(Path(f"{part}.jsonl"), [{"text": row["text"], "topic": row["label"]} for row in rows])
    learnt = everlearn(
        *("learn", "runs/first", "--domain", "c=c.jsonl", "--end-task", "topics=train.jsonl,test.jsonl"),
        *("train.max_steps=2", "train.learning_rate=1e-4", "domains.c.text_column=body"),
        *("domains.c.validation=held.jsonl", "domains.c.streaming=true"),
        *("end_tasks.topics.label_column=topic", "end_tasks.topics.epochs=1"),
    )
    assert learnt.code == 0, learnt.err
    recipe = load(everlearn.run_folder)
    new, task = recipe.domains[-1], recipe.end_tasks[-1]
    assert (new.train, new.streaming, new.text_column) == ({"max_steps": 2, "learning_rate": 1e-4}, True, "body")
    assert new.validation == str(Path("held.jsonl").resolve())
    assert (task.name, task.domain, task.epochs) == ("topics", "c", 1.0)  # type: ignore[attr-defined]
    assert recipe.train["max_steps"] == 4  # what the others were learnt with
    assert json.loads((everlearn.run_folder / "stage-03-c/stage.json").read_text())["steps"] == 2
    assert (everlearn.run_folder / "stage-03-c" / "model.safetensors").is_file()
    assert "c" in json.loads(everlearn("report", "runs/first", "--json").out)["domains"]


def test_a_domain_learnt_later_has_a_name_of_its_own(everlearn: Project, finished_run: Path) -> None:
    shutil.copytree(finished_run, everlearn.run_folder)
    everlearn.fails("learn", "runs/first", "--domain", "A=c.jsonl", says=("learnt a domain 'a' already",))


def test_a_domain_learnt_later_has_several_sources(everlearn: Project, finished_run: Path) -> None:
    shutil.copytree(finished_run, everlearn.run_folder)
    sources = "domains.c.sources=[{path: c.jsonl, weight: 3}, {path: general.jsonl}]"
    assert everlearn("learn", "runs/first", "--domain", "c", sources, "-q").code == 0
    learnt = yaml.safe_load((everlearn.run_folder / "recipe.yaml").read_text())["domains"][-1]
    assert [Path(source["path"]).name for source in learnt["sources"]] == ["c.jsonl", "general.jsonl"]
