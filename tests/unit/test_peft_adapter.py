"""PEFT adapters: of IncLoRA, and models that come as one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForMaskedLM, PreTrainedModel

import stages
import tiny
from everlearn import files
from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.base import Method, MethodConfig
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.penalties.ewc import EWC
from everlearn.model.loading import load_weights
from everlearn.model.peft_adapter import CONFIG, WEIGHTS, PeftAdapter, adapter_in, base_of

# -- IncLoRA: frozen, summed and merged adapters against W + s · Σ B A in float64 --------------------------------------


def test_model_is_the_base_plus_every_domains_adapter(tmp_path: Path) -> None:
    model = tiny.model(dropout=0.1)
    base, tokens = stages.weights(model), {"input_ids": torch.arange(5, 29)[None]}
    method = IncLoRA(r=4, lora_alpha=12)
    for index in (1, 2):
        stage = stages.stage(model, index)
        stages.learn([method], stage)
        model = stage.model
        assert isinstance(model, PreTrainedModel)
        assert not any("lora" in name for name, _ in model.named_parameters())
        assert all(parameter.requires_grad for parameter in model.parameters())
    adapters = method.memory().tensors
    changed = 0
    for name, weight in model.named_parameters():
        expected = base[name].double()
        for domain in ("d1", "d2"):
            key = f"{domain}/base_model.model.{name.removesuffix('.weight')}.lora_%s.weight"
            if key % "A" in adapters:
                changed += 1
                expected = expected + 12 / 4 * adapters[key % "B"].double() @ adapters[key % "A"].double()
        torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-6, atol=1e-7)
    assert changed == 2 * 2 * 2, "queries and values of two layers in two domains"
    assert all(float(value.abs().max()) > 0 for value in adapters.values())
    assert method.memory().facts["domains"] == ["d1", "d2"]
    model.save_pretrained(tmp_path)
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert torch.equal(plain(**tokens).logits, model.eval()(**tokens).logits)


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}, {"target_modules": "all-linear"}])
@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama"])
def test_adding_and_merging_an_adapter_keep_the_function(architecture: str, options: dict) -> None:
    stage = stages.stage(tiny.model(architecture), 1, tiny.objective_of(architecture))
    method, tokens = IncLoRA(**options), {"input_ids": torch.arange(5, 29)[None]}
    before = stage.model(**tokens).logits
    stages.begin([method], stage)
    torch.testing.assert_close(stage.model.eval()(**tokens).logits, before)
    trained = [p for p in stage.model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == method.cost(tiny.model(architecture)).parameters
    with torch.no_grad():
        for parameter in trained:
            parameter.add_(torch.randn_like(parameter) * 0.05)
    adapted = stage.model(**tokens).logits
    assert (adapted - before).abs().max() > 1e-3
    stages.end([method], stage)
    torch.testing.assert_close(stage.model(**tokens).logits, adapted, rtol=1e-4, atol=1e-5)


def test_only_the_new_adapter_is_trained() -> None:
    stage = stages.stage(tiny.model(), 1)
    method = IncLoRA()
    base = stages.weights(stage.model)
    stages.begin([method], stage)
    frozen = {name for name, p in stage.model.named_parameters() if not p.requires_grad}
    assert len(frozen) == len(base)
    assert all("lora_" in name for name, p in stage.model.named_parameters() if p.requires_grad)


def test_a_resumed_stage_starts_from_the_same_adapter() -> None:
    first, second = (stages.stage(tiny.model(), 1) for _ in range(2))
    for stage in (first, second):
        torch.rand(3)  # whatever ran before
        stages.begin([IncLoRA()], stage)
    ours, theirs = stages.weights(first.model), stages.weights(second.model)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_published_adapter_can_be_taken_back() -> None:
    model = tiny.model()
    base = stages.weights(model)
    method, stage = IncLoRA(), stages.stage(model, 1)
    stages.learn([method], stage)
    fresh = IncLoRA()
    fresh.load_memory(method.memory())
    assert fresh.memory().facts == method.memory().facts
    name = "roberta.encoder.layer.0.attention.self.query"
    a, b = (fresh.memory().tensors[f"d1/base_model.model.{name}.lora_{x}.weight"] for x in "AB")
    back = stage.model.get_parameter(f"{name}.weight") - 32 / 8 * b @ a
    torch.testing.assert_close(back, base[f"{name}.weight"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "wanted", "count"),
    [
        ("roberta", "query-value", 4), ("roberta", "attention", 8), ("roberta", "all-linear", 12),
        ("gpt2", "query-value", 2), ("gpt2", "attention", 4), ("t5", "query-value", 12), ("roberta", ["key"], 2),
    ],
)  # fmt: skip
def test_targets(architecture: str, wanted: object, count: int) -> None:
    assert len(IncLoRA(target_modules=wanted)._targets(tiny.model(architecture))) == count


def test_refusals() -> None:
    model = tiny.model(dropout=0.1)
    with pytest.raises(MethodError, match=r"'das'.*PEFT"):
        check_methods([IncLoRA(), DAS()], stages.setting(model, [IncLoRA(), DAS()]))
    for other in (MIGU(), EWC()):
        check_methods([IncLoRA(), other], stages.setting(model, [IncLoRA(), other]))
    with pytest.raises(MethodError, match=r"target_modules.*'quer'"):
        check_methods([IncLoRA(target_modules=["quer"])], stages.setting(model, [IncLoRA()]))
    stage = stages.stage(copy.deepcopy(model), 1)
    stages.begin([IncLoRA()], stage)
    with pytest.raises(MethodError, match="has adapters"):
        IncLoRA().check(stages.setting(stage.model, [IncLoRA()]))


# -- The adapter of a stage: all that a stream has changed in its base model, as plain PEFT reads it -------------------


TOKENS = {"input_ids": torch.arange(5, 29)[None]}


def learnt(architecture: str, domains: int, **options: Any) -> tuple[PreTrainedModel, PreTrainedModel, PeftAdapter]:
    """The base model, the model after so many domains, and the adapter between them."""
    base = tiny.model(architecture)
    stage, method = stages.stage(copy.deepcopy(base), 1, tiny.objective_of(architecture)), IncLoRA(r=4, **options)
    for index in range(1, domains + 1):
        stage = stages.stage(stage.model, index, tiny.objective_of(architecture), steps=2)
        stages.learn([method], stage)
    adapter = method.peft_adapter(stage.model, lambda: base)
    assert adapter is not None
    return base, stage.model.eval(), adapter


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}, {"target_modules": "all-linear"}])
@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama"])
def test_base_and_adapter_are_the_stage(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    base, model, adapter = learnt(architecture, 3, **options)
    assert (base(**TOKENS).logits - model(**TOKENS).logits).abs().max() > 1e-3
    adapter.save(tmp_path, None)
    read = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").eval()
    torch.testing.assert_close(read(**TOKENS).logits, model(**TOKENS).logits, rtol=1e-4, atol=1e-5)
    merged = read.merge_and_unload()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(merged.get_parameter(name), weight, rtol=1e-5, atol=1e-6)


def test_the_adapters_of_the_domains_are_in_it_as_they_were_learnt() -> None:
    _, _, adapter = learnt("roberta", 2)
    assert (adapter.config.r, adapter.config.lora_alpha) == (8, 64)
    shapes = {tuple(value.shape) for value in adapter.tensors.values()}
    assert shapes == {(8, 32), (32, 8)}


def test_the_same_adapter_is_the_same_bytes(tmp_path: Path) -> None:
    _, _, adapter = learnt("llama", 1)
    for name in ("one", "two"):
        adapter.save(tmp_path / name, "owner/base")
    assert files.digest(tmp_path / "one/adapter" / CONFIG) == files.digest(tmp_path / "two/adapter" / CONFIG)
    assert files.digest(tmp_path / "one/adapter" / WEIGHTS) == files.digest(tmp_path / "two/adapter" / WEIGHTS)
    raw = files.read_json(tmp_path / "one/adapter" / CONFIG)
    assert raw["target_modules"] == sorted(raw["target_modules"])
    assert (raw["task_type"], raw["base_model_name_or_path"]) == ("CAUSAL_LM", "owner/base")


def test_an_adapter_alone_is_read_with_the_model_that_it_names(tmp_path: Path) -> None:
    base, model, adapter = learnt("roberta", 2, merge=False)
    assert adapter.alone
    base.save_pretrained(tmp_path / "base")
    adapter.save(tmp_path / "stage", str(tmp_path / "base"))
    assert adapter_in(tmp_path / "stage") == tmp_path / "stage"
    assert base_of(str(tmp_path / "stage")) == (str(tmp_path / "base"), None)
    read = load_weights(str(tmp_path / "stage")).eval()
    assert not any("lora" in name for name, _ in read.named_parameters())
    torch.testing.assert_close(read(**TOKENS).logits, model(**TOKENS).logits, rtol=1e-4, atol=1e-5)


def test_an_adapter_that_names_no_base_says_so(tmp_path: Path) -> None:
    from everlearn.errors import ModelError

    _, _, adapter = learnt("roberta", 1, merge=False)
    adapter.save(tmp_path, None)
    with pytest.raises(ModelError, match=r"^'.*' \(`model\.path`\) is an adapter that does not name its base model"):
        load_weights(str(tmp_path))


def test_weights_that_no_adapter_holds_are_not_lost() -> None:
    class Moves(Method):
        """Ends with other weights."""

        name, title, paper = "moves", "Moves", ""
        Config = MethodConfig

        def final_weights(self, stage: Any) -> dict[str, torch.Tensor]:
            return {}

    model = tiny.model()
    for merge in (True, False):
        methods = [IncLoRA(merge=merge), Moves()]
        if merge:
            methods[0].check(stages.setting(model, methods))
        else:
            with pytest.raises(MethodError, match="does not describe a stage"):
                methods[0].check(stages.setting(model, methods))
