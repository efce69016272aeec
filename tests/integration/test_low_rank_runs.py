"""Runs with one adapter or one mixture of experts for the whole stream: what is on disk, and what is scored."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_runs
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from everlearn import files
from everlearn.commands.export import export
from everlearn.errors import RunError
from everlearn.learner import ContinualLearner

pytestmark = pytest.mark.usefixtures("no_report")
TOKENS = {"input_ids": torch.arange(5, 29)[None]}


def test_an_adapter_of_the_whole_stream_is_the_same_whether_stages_are_merged_or_not(tmp_path: Path) -> None:
    """Each domain goes on from the base model and the adapter, so how a stage keeps them does not matter."""
    runs = {}
    for merge in (True, False):
        recipe = small_runs.recipe(tmp_path, "llama", {"name": "lora", "r": 4, "merge": merge})
        runs[merge] = ContinualLearner(small_runs.elsewhere(recipe, tmp_path / f"run-{merge}"))
        runs[merge].run()
    base = AutoModelForCausalLM.from_pretrained(runs[True].recipe.model.path)
    with pytest.raises(RunError, match=r"'lora' begins each domain with the base model's weights.*`--base-model`"):
        export(runs[True].folder.path, tmp_path / "export", with_memory=True)
    for index, domain in enumerate(runs[True].recipe.domains, 1):
        merged, alone = (run.folder.stage(index, domain.name) for run in runs.values())
        learnt = [files.load_tensors(folder / "adapter_model.safetensors") for folder in (merged / "adapter", alone)]
        assert all(torch.equal(value, learnt[1][name]) for name, value in learnt[0].items())
        whole = AutoModelForCausalLM.from_pretrained(merged).eval()
        beside = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(runs[True].recipe.model.path), merged / "adapter"
        )
        torch.testing.assert_close(beside.eval()(**TOKENS).logits, whole(**TOKENS).logits, rtol=1e-4, atol=1e-5)
        for name, weight in whole.named_parameters():
            assert ("q_proj" in name or "v_proj" in name) != torch.equal(weight, base.get_parameter(name))


def test_experts_are_read_at_test_beside_the_base_model(tmp_path: Path) -> None:
    learner = ContinualLearner(small_runs.recipe(tmp_path, "t5", "moe_lora"))
    results = learner.run()
    stage = learner.folder.stage(2, learner.recipe.domains[1].name)
    base = AutoModelForSeq2SeqLM.from_pretrained(learner.recipe.model.path)
    plain = AutoModelForSeq2SeqLM.from_pretrained(stage)
    assert all(torch.equal(weight, base.get_parameter(name)) for name, weight in plain.named_parameters())
    assert not (stage / "adapter").exists()
    scores = next(iter(results.matrices.values())).cells
    assert len({value for _, _, value, *_ in scores}) > len(learner.recipe.domains), "not the base model's throughout"
    assert any(hasattr(module, "lora_router") for module in learner.tested().modules())
    with pytest.raises(RunError, match=r"'moe_lora' reads a text with what it keeps.*--with-memory"):
        export(stage, tmp_path / "export")
