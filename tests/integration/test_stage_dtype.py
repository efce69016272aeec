"""Stages whose weights are kept in bfloat16 (`run.stage_dtype`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import SAVING, Killer, assert_same, elsewhere, kill_and_resume, recipe
from transformers import AutoModelForCausalLM

from everlearn import files
from everlearn.commands.export import export
from everlearn.commands.plan import make_plan
from everlearn.config.recipe import Recipe
from everlearn.learner import ContinualLearner

pytestmark = pytest.mark.usefixtures("no_report")


def rounded(folder: Path, method: Any = "sequential", **groups: Any) -> Recipe:
    """The recipe of a small run that keeps bfloat16."""
    made = recipe(folder, "gpt2", method, **groups)
    return made.changed(run=made.run.model_dump() | {"stage_dtype": "bfloat16"})


@pytest.mark.parametrize(
    "method", [[{"name": "mas", "samples": 4}, "replay"], {"name": "inc_lora", "merge": False}, "lora"]
)
def test_killed_and_resumed_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    broken = rounded(tmp_path, method, train=SAVING)
    whole = elsewhere(broken, tmp_path / "whole")
    ContinualLearner(whole).run()
    kill_and_resume(Killer(monkeypatch), broken, ["step 1.3", "step 2.2"])
    assert_same(broken.folder(), whole.folder())


def test_what_is_kept_is_what_is_scored_and_what_the_next_domain_begins_with(tmp_path: Path) -> None:
    learner = ContinualLearner(made := rounded(tmp_path))
    results = learner.run()
    assert any("weights in bfloat16" in note for note in results.notes)
    places = [learner.folder.stage(index, domain.name) for index, domain in enumerate(made.domains, 1)]
    for place in places:
        kept = files.load_tensors(place / "model.safetensors")
        assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}
        assert AutoModelForCausalLM.from_pretrained(place).dtype == torch.bfloat16
    first = learner.model_after(1)
    assert {weight.dtype for weight in first.parameters()} == {torch.float32}
    exact = elsewhere(recipe(tmp_path, "gpt2"), tmp_path / "exact")
    ContinualLearner(exact).run()
    whole = {place.stat().st_size for place in exact.folder().glob("stage-*/model.safetensors")}
    assert max(place.stat().st_size for place in made.folder().glob("stage-*/model.safetensors")) < 0.6 * min(whole)
    unrounded = ContinualLearner.open(exact.folder()).model_after(1)
    for name, weight in first.named_parameters():
        assert weight.equal(unrounded.get_parameter(name).bfloat16().float())
    again = ContinualLearner.open(made.folder())
    for file in (made.folder() / "evaluation").rglob("*.json"):
        file.unlink()
    assert again.resume().matrices == results.matrices


def test_an_export_in_the_same_format_is_the_stage(tmp_path: Path) -> None:
    made = rounded(tmp_path, "replay")
    ContinualLearner(made).run()
    stage = next(made.folder().glob("stage-02-*"))
    export(stage, tmp_path / "model", dtype="bfloat16", with_memory=True)
    assert files.load_tensors(tmp_path / "model" / "model.safetensors").keys()
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (stage / "model.safetensors").read_bytes()
    assert "They were measured" not in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    export(stage, tmp_path / "half", dtype="float16")
    said = "They were measured with weights in bfloat16; the weights here are rounded to float16."
    assert said in (tmp_path / "half" / "README.md").read_text(encoding="utf-8")


def test_an_adapter_beside_a_rounded_stage_is_rounded_by_an_export(tmp_path: Path) -> None:
    made = rounded(tmp_path, "lora")
    ContinualLearner(made).run()
    stage = next(made.folder().glob("stage-02-*"))
    export(stage, tmp_path / "adapter", dtype="bfloat16", adapter=True)
    tensors = files.load_tensors(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    export(stage, tmp_path / "exact", adapter=True)
    for folder, said in (
        ("adapter", "the weights here are rounded to bfloat16"),
        ("exact", "the adapter here is not rounded"),
    ):
        card = (tmp_path / folder / "README.md").read_text(encoding="utf-8")
        assert f"They were measured with weights in bfloat16; {said}." in card


def test_the_plan_counts_half_of_the_weights(tmp_path: Path) -> None:
    made = recipe(tmp_path, "gpt2", train={"save_strategy": "no"})
    plans = [
        make_plan(made.changed(run=made.run.model_dump() | {"stage_dtype": dtype}), measure=False)
        for dtype in ("float32", "bfloat16")
    ]
    assert plans[0].disk == 2 * plans[1].disk
