"""LoRA: one adapter through the stream, W_0 + s · B A in float64, and a base that stays the base."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers import PreTrainedModel

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.adapters.lora import LoRA
from everlearn.methods.base import Method, MethodConfig, Stage
from everlearn.methods.engine.protection import check_methods
from everlearn.methods.stage import Checkpoints

ARCHITECTURES = ["roberta", "gpt2", "llama", "t5"]
OPTIONS: list[dict[str, Any]] = [{}, {"use_dora": True}, {"use_rslora": True}, {"target_modules": "all-linear"}]


def stage_of(model: PreTrainedModel, base: PreTrainedModel, index: int, architecture: str, **options: Any) -> Stage:
    """A stage whose earlier models begin with the base model that the stream had."""
    stage = stages.stage(model, index, tiny.objective_of(architecture), **options)
    stage.checkpoints = Checkpoints(index, lambda number: copy.deepcopy(base if number == 0 else model))
    return stage


def stream(architecture: str, domains: int, **options: Any) -> tuple[PreTrainedModel, PreTrainedModel, LoRA]:
    """The base model, the model after so many domains, and the method."""
    base = tiny.model(architecture, dropout=0.1)
    model, method = copy.deepcopy(base), LoRA(**options)
    for index in range(1, domains + 1):
        stage = stage_of(model, base, index, architecture, steps=2)
        stages.learn([method], stage)
        model = stage.model
    return base, model.eval(), method


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_stage_is_the_base_model_and_one_adapter(architecture: str) -> None:
    base, model, method = stream(architecture, 3, r=4, lora_alpha=12)
    adapter, start, targets = method.memory().tensors, stages.weights(base), method._targets(base)
    for name, weight in model.named_parameters():
        if name.removesuffix(".weight") not in targets:
            assert torch.equal(weight, start[name]), f"{name} is frozen"
            continue
        a, b = (adapter[f"base_model.model.{name.removesuffix('.weight')}.lora_{x}.weight"].double() for x in "AB")
        change = 12 / 4 * b @ a
        expected = start[name].double() + (change.T if architecture == "gpt2" else change)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=1e-7)
        assert b.abs().max() > 0
    assert len(adapter) == 2 * len(targets)
    assert method.memory().facts["domains"] == ["d1", "d2", "d3"]
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
def test_a_domain_begins_with_the_base_models_weights_and_the_adapter_that_was_left(
    architecture: str, options: dict[str, Any]
) -> None:
    base, model, method = stream(architecture, 1, **options)
    start, left, tokens = stages.weights(base), method.memory().tensors, {"input_ids": torch.arange(5, 29)[None]}
    before = model(**tokens).logits
    stage = stage_of(model, base, 2, architecture)
    stages.begin([method], stage)
    frozen = {name: value for name, value in stage.model.named_parameters() if not value.requires_grad}
    assert len(frozen) == len(start)
    for name, value in frozen.items():
        assert torch.equal(value, start[name.removeprefix("base_model.model.").replace(".base_layer", "")])
    now = get_peft_model_state_dict(stage.model)
    assert now.keys() == left.keys()
    assert all(torch.equal(value, left[name]) for name, value in now.items())
    torch.testing.assert_close(stage.model.eval()(**tokens).logits, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
def test_base_and_adapter_are_the_stage(tmp_path: Path, architecture: str, options: dict[str, Any]) -> None:
    base, model, method = stream(architecture, 2, r=4, **options)
    adapter = method.peft_adapter(model, lambda: base)
    assert adapter is not None
    assert adapter.config.r == 4, "its rank does not grow"
    adapter.save(tmp_path, None)
    read = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter").merge_and_unload()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(read.get_parameter(name), weight, rtol=1e-5, atol=1e-6)


def test_what_was_learnt_does_not_depend_on_the_rounding_of_a_stage() -> None:
    """However the merged weights are rounded: only W_0, A and B are gone on from."""
    results = []
    for disturb in (False, True):
        base, model, method = stream("roberta", 1, lora_dropout=0.0)
        if disturb:
            with torch.no_grad():
                for path in method._targets(model):
                    model.get_parameter(f"{path}.weight").add_(1.0)
        stage = stage_of(model, base, 2, "roberta")
        stages.learn([method], stage)
        results.append((stages.weights(stage.model), method.memory().tensors))
    assert all(torch.equal(one[name], other[name]) for one, other in zip(*results, strict=True) for name in one)


def test_refusals() -> None:
    class Starts(Method):
        """Begins with other weights."""

        name, title, paper = "starts", "Starts", ""
        Config = MethodConfig

        def starting_weights(self, stage: Any) -> dict[str, torch.Tensor]:
            return {}

    model = tiny.model()
    methods = [LoRA(), Starts()]
    with pytest.raises(MethodError, match=r"'starts' changes weights that no adapter holds.*Remove one"):
        check_methods(methods, stages.setting(model, methods))
    method, other = LoRA(r=4), LoRA(r=2)
    stages.learn([method], stage_of(model, model, 1, "roberta", steps=1))
    other.load_memory(method.memory())
    with pytest.raises(MethodError, match=r"'lora' remembers .*lora_A.*\(4, 32\).*\(2, 32\).*`r`"):
        stages.begin([other], stage_of(tiny.model(), model, 2, "roberta"))
