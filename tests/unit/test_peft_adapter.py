"""The adapter of a stage: all that a stream has changed in its base model, as plain PEFT reads it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import PreTrainedModel

import stages
import tiny
from everlearn import files
from everlearn.errors import MethodError
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.base import Method, MethodConfig
from everlearn.model.loading import load_weights
from everlearn.model.peft_adapter import CONFIG, WEIGHTS, PeftAdapter, adapter_in, base_of

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
            with pytest.raises(MethodError, match="cannot be kept as adapters alone"):
                methods[0].check(stages.setting(model, methods))
