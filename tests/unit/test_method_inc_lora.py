"""IncLoRA: frozen, summed and merged adapters against W + s · Σ B A in float64."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.masks.das import DAS
from everlearn.methods.masks.migu import MIGU
from everlearn.methods.penalties.ewc import EWC


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
