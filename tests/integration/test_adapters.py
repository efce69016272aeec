"""Runs with LoRA: a PEFT adapter for each stage, or one adapter or mixture of experts for the whole stream."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from everlearn import files
from everlearn.commands.evaluate import named
from everlearn.commands.export import export
from everlearn.commands.plan import disk_bytes
from everlearn.data.corpus import Domain
from everlearn.errors import MethodError, RunError
from everlearn.learner import ContinualLearner
from everlearn.model.loading import load_model
from everlearn.model.options import Model

pytestmark = pytest.mark.usefixtures("no_report")
TOKENS = {"input_ids": torch.arange(5, 29)[None]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, no_report: None) -> dict[bool, ContinualLearner]:
    """The same stream with stages merged, and as adapters alone."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for merge in (True, False):
        method = {"name": "inc_lora", "r": 4, "merge": merge}
        recipe = small_runs.recipe(folder, method=method, train=small_runs.SAVING)
        found[merge] = ContinualLearner(small_runs.elsewhere(recipe, folder / f"run-{merge}"))
        found[merge].run()
    return found


def stage(learner: ContinualLearner, index: int) -> Path:
    return learner.folder.stage(index, learner.recipe.domains[index - 1].name)


@pytest.mark.parametrize("index", [1, 2])
def test_plain_peft_reads_a_stage(runs: dict[bool, ContinualLearner], index: int) -> None:
    whole = AutoModelForMaskedLM.from_pretrained(stage(runs[True], index)).eval()(**TOKENS).logits
    base = runs[True].recipe.model.path
    beside = PeftModel.from_pretrained(AutoModelForMaskedLM.from_pretrained(base), stage(runs[True], index) / "adapter")
    torch.testing.assert_close(beside.eval()(**TOKENS).logits, whole, rtol=1e-4, atol=1e-5)
    alone = AutoModelForMaskedLM.from_pretrained(stage(runs[False], index))  # transformers finds base and adapter
    ours = runs[False].model_after(index).eval()(**TOKENS).logits
    torch.testing.assert_close(alone.eval()(**TOKENS).logits, ours, rtol=1e-4, atol=1e-5)
    # The first stage is the same training; the second starts from weights that were rounded in another order.
    torch.testing.assert_close(ours, whole, rtol=1e-3, atol=1e-4)


def test_an_adapter_alone_is_small(runs: dict[bool, ContinualLearner]) -> None:
    sizes = {
        merge: sum(path.stat().st_size for path in stage(learner, 2).rglob("*.safetensors"))
        for merge, learner in runs.items()
    }
    assert sizes[False] < sizes[True] / 2
    assert not (stage(runs[False], 2) / "model.safetensors").exists()
    planned = {merge: disk_bytes(learner, learner.some_model()) for merge, learner in runs.items()}
    assert planned[False] < planned[True]


def test_scores_agree(runs: dict[bool, ContinualLearner]) -> None:
    scores = [
        files.read_json(runs[merge].folder.results_file)["matrices"]["bits_per_byte"]["cells"]
        for merge in (True, False)
    ]
    for (row, column, value, *_), (_, _, other, *_) in zip(*scores, strict=True):
        assert value == pytest.approx(other, rel=1e-4), (row, column)


def test_every_reader_takes_them(runs: dict[bool, ContinualLearner]) -> None:
    learner = runs[False]
    assert [each.label.split()[1] for each in named([str(learner.folder.path)])] == [
        "stage-01-first",
        "stage-02-second",
    ]
    logits = [model.cpu()(**TOKENS).logits for model in (learner.tested("second"), learner.model_after(2).eval())]
    torch.testing.assert_close(*logits)
    assert not learner.folder.without_weights(2, "second")
    third = small_runs.corpus(learner.folder.path.parent / "data", "third")
    results = ContinualLearner.open(learner.folder.path).learn(Domain(name="third", path=str(third), validation=0.15))
    assert results.domains == ["first", "second", "third"]


def test_killed_and_resumed_it_is_the_same(
    runs: dict[bool, ContinualLearner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_runs.elsewhere(runs[False].recipe, tmp_path / "run")
    killer = small_runs.Killer(monkeypatch)
    small_runs.kill_and_resume(killer, recipe, ["step 1.3", "seal 1", "step 2.4"])
    for index, name in ((1, "first"), (2, "second")):
        mine, theirs = (
            files.load_tensors(folder / f"stage-0{index}-{name}" / "adapter_model.safetensors")
            for folder in (tmp_path / "run", runs[False].folder.path)
        )
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("sequential", "all weights of the sum are trained: each stage is a complete model"),
        ("o_lora", "'o_lora' does not go on training it.* stages keep belong to the sum, not to"),
        ({"name": "inc_lora", "merge": False}, "'inc_lora' does not go on training it.* stages keep belong to the sum"),
        ("k_adapter", r"'k_adapter' does not go on training it, but trains what it adds to the sum\.$"),
    ],
    ids=str,
)
def test_an_adapter_as_the_model_is_added_to_its_base_with_a_note(tmp_path: Path, method: Any, said: str) -> None:
    recipe = small_runs.recipe(tmp_path, "roberta", method)
    base = load_model(recipe.model)
    torch.manual_seed(0)
    adapted = get_peft_model(base, LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    expected = adapted.eval()(**TOKENS).logits
    recipe = recipe.changed(model={"path": str(tmp_path / "adapter")})
    learner = ContinualLearner(recipe)
    torch.testing.assert_close(learner.model_after(0).eval()(**TOKENS).logits, expected, rtol=1e-4, atol=1e-5)
    results = learner.run()
    (note,) = (note for note in results.notes if "PEFT adapter" in note)
    assert "It was added to the weights of its base model, roberta" in note
    assert str(tmp_path) not in note
    assert re.search(said, note)
    if method != "k_adapter":
        ours = learner.model_after(2).eval()(**TOKENS).logits
        again = load_model(Model(path=str(stage(learner, 2)))).eval()  # also an adapter of a model with an adapter
        torch.testing.assert_close(again(**TOKENS).logits, ours, rtol=1e-4, atol=1e-5)


def test_a_base_of_random_weights_must_be_merged(tmp_path: Path) -> None:
    recipe = small_runs.recipe(tmp_path, method={"name": "inc_lora", "merge": False})
    model = {
        "config": {"model_type": "roberta", "hidden_size": 32, "num_attention_heads": 4},
        "tokenizer": recipe.model.path,
    }
    with pytest.raises(MethodError, match="merge: true"):
        ContinualLearner(recipe.changed(model=model)).check()


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
