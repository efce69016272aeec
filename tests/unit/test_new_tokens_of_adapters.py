"""Rows of new tokens that are trained beside LoRA: only these move, ties stay, merged and loaded again by PEFT."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from protected_run import trainer_of
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import stages
import tiny
from everlearn import protect
from everlearn.data import PackedBlocks
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.base import Method
from everlearn.methods.stage import Checkpoints
from everlearn.model.vocabulary import NEW_TOKEN_IDS

NEW = [380, 381, 383]


def extended(architecture: str = "llama", **options: Any) -> Any:
    """A tiny model whose configuration says that it was extended by three tokens."""
    model = tiny.model(architecture, **options)
    setattr(model.config, NEW_TOKEN_IDS, NEW)
    return model


def spec(name: str, **options: Any) -> Method:
    return build({"name": name, "lora_dropout": 0.0, "trainable_token_indices": "new", **options})


def a_stage(model: nn.Module, index: int) -> Any:
    """A domain in which every row has the new tokens."""
    stage, rows = stages.stage(model, index, "causal", general=True), stages.blocks(12, index, "causal")
    for row in rows:
        row["input_ids"][2:5] = NEW
    stage.source = PackedBlocks.from_blocks(rows, index, stage.domain)
    return stage


def logits(model: nn.Module) -> Tensor:
    ids = torch.arange(5, 29)[None].clone()
    ids[0, 3:6] = torch.tensor(NEW)
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=ids).logits
    return found


def learn(methods: list[Method], model: Any, domains: int = 2) -> Any:
    base = copy.deepcopy(model)
    for index in range(1, domains + 1):
        stage, last = a_stage(model, index), copy.deepcopy(model)
        stage.checkpoints = Checkpoints(index, lambda n, last=last: copy.deepcopy(last if n else base))
        stages.learn(methods, stage)
        model = stage.model
    return model


KINDS = {"tied": {"tie_word_embeddings": True}, "untied": {"tie_word_embeddings": False}}


@pytest.mark.parametrize("name", ["lora", "inc_lora", "o_lora", "clora", "corda"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_only_the_new_rows_move_and_the_stage_loads_everywhere(name: str, kind: str, tmp_path: Path) -> None:
    base = extended(**KINDS[kind])
    before, method = copy.deepcopy(base), spec(name)
    model = learn([method], base)
    tables = {"model.embed_tokens.weight"} | ({"lm_head.weight"} if kind == "untied" else set())
    old = [number for number in range(len(before.get_input_embeddings().weight)) if number not in NEW]
    for table in tables:
        now, then = model.get_parameter(table), before.get_parameter(table)
        assert torch.equal(now[old], then[old]), "no other row moves"
        assert (now[NEW] != then[NEW]).any(1).all(), "every new row does"
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (kind == "tied")
    wanted = logits(model)
    model.save_pretrained(tmp_path / "merged")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert again.config.new_token_ids == NEW
    torch.testing.assert_close(logits(again), wanted, rtol=0, atol=1e-6)
    adapter = method.peft_adapter(model, lambda: copy.deepcopy(before))
    assert adapter is not None
    adapter.save(tmp_path / "stage", None)
    loaded = PeftModel.from_pretrained(copy.deepcopy(before), tmp_path / "stage" / "adapter")
    torch.testing.assert_close(logits(loaded), wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("architecture", ["gpt2", "gpt_neox", "mistral"])
def test_other_decoders_too(architecture: str) -> None:
    base = extended(architecture)
    before = copy.deepcopy(base)
    model = learn([spec("lora")], base)
    now, then = model.get_input_embeddings().weight, before.get_input_embeddings().weight
    old = [number for number in range(len(then)) if number not in NEW]
    assert torch.equal(now[old], then[old])
    assert (now[NEW] != then[NEW]).any(1).all()


@pytest.mark.parametrize(
    "other", [{"name": "mas", "samples": 4}, {"name": "budget", "samples": 4, "probe": 4, "checks": 1}]
)
def test_penalties_and_budgets_hold_the_rows(other: dict[str, Any]) -> None:
    methods = [spec("lora"), build(other)]
    learn(methods, extended(**KINDS["tied"]))
    held = methods[1]._known["earlier"].importance if other["name"] == "budget" else methods[1]._importance
    assert "model.embed_tokens.weight" in held


def test_what_cannot_be_gets_a_sentence() -> None:
    def refusal(model: Any, **options: Any) -> str:
        methods = [spec("lora", **options)]
        with pytest.raises(MethodError) as found:
            stages.learn(methods, stages.stage(model, 1, "masked" if "bert" in model.config.model_type else "causal"))
        return str(found.value)

    assert "'new' trains the tokens that `everlearn extend` has added, and the model has none" in refusal(
        tiny.model("llama")
    )
    assert "9999 is not a token of the model" in refusal(tiny.model("llama"), trainable_token_indices=[5, 9999])
    assert "without bias" in refusal(extended("roberta"))
    with pytest.raises(MethodError, match="option 'trainable_token_indices"):
        spec("lora", trainable_token_indices=[-1])


def test_a_memory_goes_on_with_the_rows(tmp_path: Path) -> None:
    """As `lora` continues A and B: the second domain begins where the first one ended."""
    first = spec("lora")
    model = learn([first], extended(**KINDS["tied"]), 1)
    again = spec("lora")
    again.load_memory(first.memory())
    stage = stages.stage(model, 2, "causal", general=True)
    wanted = logits(model)
    base = extended(**KINDS["tied"])
    stage.checkpoints = Checkpoints(2, lambda number: copy.deepcopy(model if number else base))
    stages.begin([again], stage)
    torch.testing.assert_close(logits(stage.model), wanted, rtol=0, atol=1e-6)


def test_protect_warns_of_rows_that_stay_and_the_advice_works(tmp_path: Path) -> None:
    def trained(folder: str, **options: Any) -> tuple[bool, list[str]]:
        model = get_peft_model(extended(), LoraConfig(r=2, target_modules=["q_proj"], **options))
        trainer = trainer_of(model, tmp_path)
        trainer.train_dataset = [{"input_ids": row["input_ids"][:4] + NEW} for row in trainer.train_dataset]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            protect(trainer, ["l2"], memory=tmp_path / folder)
        trainer.train()
        before, now = (each.get_input_embeddings().weight[NEW] for each in (extended(), model.merge_and_unload()))
        return bool((now != before).any()), [str(each.message) for each in caught]

    moved, said = trained("stays")
    assert not moved
    assert any("was extended by 3 tokens, whose embeddings this training leaves as they are" in each for each in said)
    moved, said = trained("moves", trainable_token_indices=extended().config.new_token_ids)
    assert moved
    assert not any("was extended" in each for each in said)
