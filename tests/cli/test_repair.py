"""``everlearn repair`` as a user types it, on a run that forgets."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import everlearn as package
import tiny
from cli_project import Project, write_jsonl
from everlearn.learner import ContinualLearner
from everlearn.tasks.held_out import HeldOutText


def scrambled(count: int) -> list[dict[str, str]]:
    """Text of other letters than the general text's."""
    generator = random.Random(5)
    return [{"text": " ".join("".join(generator.choices("XYZQ", k=4)) for _ in range(40))} for _ in range(count)]


@pytest.fixture
def forgetful(everlearn: Project) -> Project:
    """A run that learns scrambled text at a high rate and loses the general text."""
    write_jsonl(everlearn.folder / "a.jsonl", scrambled(60))
    everlearn.recipe["general"] = {"path": "general.jsonl", "validation": 0.5}
    everlearn.recipe["domains"] = everlearn.recipe["domains"][:1]
    everlearn.recipe["train"] |= {"max_steps": 12, "learning_rate": 0.03, "lr_scheduler_type": "constant"}
    everlearn.recipe["evaluation"] |= {"blocks": 48, "samples": 0}
    assert everlearn("run", "recipe.yaml").code == 0
    return everlearn


def bits(learner: ContinualLearner, model: torch.nn.Module, half: int) -> float:
    """Bits per byte of a half of the general text, from the model's own logits, in float64."""
    scorer = learner.scorer()
    path = scorer.held_out("general").path
    part = HeldOutText(path, None, None, half).held_out
    rows, widths = part.blocks, part.rows["bytes_per_token"]
    objective = scorer.conditions(0).objective
    nats = read = 0.0
    for row in range(len(rows)):
        batch = objective.collate(rows.take([row]), [row])
        with torch.no_grad():
            logits = model(**objective.inputs(batch), **objective.options()).logits[0].double().log_softmax(-1)
        for place, label in zip(batch["positions"][0].tolist(), batch["labels"][0].tolist(), strict=True):
            if label != -100:
                nats, read = nats - float(logits[place, label]), read + float(widths[row])
    return nats / math.log(2) / read


def test_a_budget_is_kept_and_what_is_left_is_told(forgetful: Project) -> None:
    run = str(forgetful.run_folder)
    whole = json.loads(forgetful.call("repair", run, "--budget", "100", "--json").out)
    assert (whole["step"], len(whole["curve"])) == (1, 1), "one look is enough"
    assert whole["remains"]["a"]["share"]["value"] == 1
    assert whole["lost"]["value"] == whole["whole"]["value"] > 0.1, "it forgets"

    budget = whole["whole"]["value"] / 10
    shown = forgetful.call("repair", run, "--budget", f"{budget}", "-o", "repaired")
    assert shown.code == 0, shown.err
    assert "What remains of the domains" in shown.out
    assert "Model: repaired" in shown.out
    found = json.loads((forgetful.run_folder / "repair.json").read_text(encoding="utf-8"))
    assert 0 < found["step"] < 1
    assert {point["step"] for point in found["curve"]} >= {found["step"], 1.0}
    at = {point["step"]: point["value"] for point in found["curve"]}
    assert at[found["step"]] <= budget
    assert all(value > budget for step, value in at.items() if step > found["step"])
    assert found["step"] + 0.01 >= min(step for step, value in at.items() if value > budget)
    left = found["remains"]["a"]
    assert left["role"] == "learnt in between"
    assert left["share"]["value"] == pytest.approx(left["left"]["value"] / left["learnt"]["value"])
    page = (forgetful.run_folder / "repair.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "Repair: base and a" in page

    # The model that was written is at that step, and loses what was said: measured here by other means.
    learner = ContinualLearner.open(run)
    start, end = (dict(learner.model_after(index).state_dict()) for index in (0, 1))
    model = AutoModelForMaskedLM.from_pretrained("repaired").eval()
    for name, tensor in load_file("repaired/model.safetensors").items():
        wanted = start[name].double() + found["step"] * (end[name].double() - start[name].double())
        torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-7)
    before = learner.model_after(0).eval()
    for half, said in ((0, at[found["step"]]), (1, found["lost"]["value"])):
        assert bits(learner, model, half) - bits(learner, before, half) == pytest.approx(said, abs=1e-4)
    made = json.loads(Path("repaired/merged.json").read_text(encoding="utf-8"))
    assert made["way"] == {"name": "wise_ft", "alpha": found["step"]}
    assert made["repair"]["budget"] == budget

    sure = json.loads(forgetful.call("repair", run, "--budget", f"{budget}", "--sure", "--json").out)
    assert sure["step"] <= found["step"]
    assert next(p["high"] for p in sure["curve"] if p["step"] == sure["step"]) <= budget

    write_jsonl(forgetful.folder / "mine.jsonl", [{"text": text} for text in tiny.texts(60, seed=77)])
    mine = json.loads(forgetful.call("repair", run, "--budget", f"{budget}", "--text", "mine.jsonl", "--json").out)
    assert mine["text"] == "text"
    assert 0 < mine["step"] < 1
    assert np.isclose(mine["step"], found["step"], atol=0.25)


def causal_bits(learner: ContinualLearner, model: torch.nn.Module, name: str, half: int) -> float:
    """The same of a half of any held-out set, for a model that reads a whole row from left to right."""
    path = learner.scorer().held_out(name).path
    part = HeldOutText(path, None, None, half).held_out
    ids = torch.from_numpy(part.blocks.arrays["input_ids"]).long()
    with torch.no_grad():
        said = model(ids).logits.double().log_softmax(-1)[:, :-1]
    nats = -said.gather(-1, ids[:, 1:, None])
    return float(nats.mean()) / math.log(2) / float(part.rows["bytes_per_token"].mean())


METHODS: dict[str, tuple[Any, float]] = {
    "every weight": ("sequential", 0.01),
    "LoRA, merged": ({"name": "lora", "r": 4, "target_modules": "all-linear"}, 0.1),
    "LoRA, not merged": ({"name": "inc_lora", "r": 4, "target_modules": "all-linear", "merge": False}, 0.1),
}


@pytest.mark.parametrize("method", METHODS)
def test_what_an_earlier_domain_loses_to_a_later_one(everlearn: Project, method: str) -> None:
    """`--from a --on a`, of a causal model: written at the step, it is a plain model and loses what is said."""
    write_jsonl(everlearn.folder / "b.jsonl", scrambled(60))
    everlearn.recipe["model"] = str(everlearn.models / "llama")
    chosen, rate = METHODS[method]
    everlearn.recipe["method"] = chosen
    everlearn.recipe["data"]["isolate_documents"] = False
    everlearn.recipe["train"] |= {"max_steps": 8, "learning_rate": rate, "lr_scheduler_type": "constant"}
    everlearn.recipe["evaluation"] |= {"blocks": 16, "samples": 0}
    done = everlearn("run", "recipe.yaml")
    assert done.code == 0, done.err
    run = everlearn.run_folder
    adapter_alone = not (run / "stage-02-b" / "model.safetensors").is_file()
    assert adapter_alone == ("not merged" in method)

    whole = json.loads(everlearn.call("repair", str(run), "--from", "a", "--on", "a", "--budget", "100", "--json").out)
    assert whole["step"] == 1
    budget = whole["whole"]["value"] / 4
    assert budget > 0.002, "it forgets"
    found = package.repair(run, budget, everlearn.folder / "out", on="a", since="a")
    assert (found.since, found.until, found.text) == ("a", "b", "a")
    assert 0 < found.step < 1
    assert found.remains["b"].role == "learnt in between"
    assert found.curve[found.step].value <= budget

    learner = ContinualLearner.open(run)
    start, end = (dict(learner.model_after(index).state_dict()) for index in (1, 2))
    written = load_file(everlearn.folder / "out" / "model.safetensors")
    assert not [name for name in written if "lora" in name]
    for name, tensor in written.items():
        wanted = start[name].double() + found.step * (end[name].double() - start[name].double())
        torch.testing.assert_close(tensor.double(), wanted, rtol=1e-5, atol=1e-7)
    model = AutoModelForCausalLM.from_pretrained(everlearn.folder / "out").eval()
    before = learner.model_after(1).eval()
    lost = causal_bits(learner, model, "a", 1) - causal_bits(learner, before, "a", 1)
    assert lost == pytest.approx(found.lost.value, abs=1e-4)


def test_in_python_mistakes_are_found_before_anything_is_read(finished_run: Path, tmp_path: Path) -> None:
    for options, says in (
        ({"on": "a", "text": "mine.jsonl"}, "Leave one out"),
        ({"on": "a", "folder": finished_run / "out"}, "inside the run"),
        ({"on": "a", "since": "bse"}, "Did you mean 'base'"),
    ):
        with pytest.raises(package.EverlearnError, match=says):
            package.repair(finished_run, 0.02, **options)
    assert not (tmp_path / "out").exists()


def test_mistakes_are_sentences(everlearn: Project, finished_run: Path) -> None:
    run = str(finished_run)
    for arguments, says in (
        ((), ("no general text", "--text")),
        (("--on", "c"), ("`--on` is 'c'", "Known: a, b")),
        (("--on", "a", "--text", "a.jsonl"), ("`--on`", "`--text`")),
        (("--on", "a", "--from", "bse"), ("`--from` is 'bse'", "Did you mean 'base'?")),
        (("--on", "a", "--budget", "-1"), ("--budget",)),
        (("--on", "a", "-o", str(finished_run / "out")), ("inside the run",)),
        (("--text", "nowhere.jsonl"), ("nowhere.jsonl",)),
    ):
        everlearn.fails("repair", run, *arguments, says=says)
