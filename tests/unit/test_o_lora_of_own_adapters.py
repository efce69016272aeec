"""O-LoRA's terms on the adapters that a model brings along: in a trainer, and of a PEFT folder as base model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AdaLoraConfig, LoraConfig, PeftModel, get_peft_model
from protected_run import OPTIONS, collator, rows
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.protection import Protection
from everlearn.model.peft_adapter import directions_of, matrices_of, merged, with_adapter
from everlearn.protecting import protect

TARGETS = ["q_proj", "v_proj", "down_proj"]


def adapted(base: nn.Module | None = None, seed: int = 0, r: int = 4) -> PeftModel:
    """A tiny model with a LoRA adapter that does something."""
    torch.manual_seed(seed)
    model = get_peft_model(base or tiny.model("llama"), LoraConfig(target_modules=TARGETS, r=r)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05)
    return model


def overlaps(new: dict[str, Tensor], earlier: list[dict[str, Tensor]], absolute: bool = True) -> float:
    """Σ over layers, earlier adapters and pairs of rows, in float64 by loops."""
    total = 0.0
    for path, a in new.items():
        for learnt in earlier:
            for row in a.detach().double():
                for other in learnt.get(path, torch.zeros(0, a.shape[1])).detach().double():
                    product = float(row @ other)
                    total += abs(product) if absolute else product**2
    return total


def copies(model: nn.Module, trained: bool = True) -> dict[str, Tensor]:
    """A of each layer."""
    return {path: a.detach().clone() for path, a in matrices_of(model, "A", trained=trained).items()}


def the_term(method: Any, model: nn.Module, index: int) -> float:
    """The logged loss of a domain that begins now."""
    protection = Protection([method], stage := stages.stage(model, index, "causal"))
    protection.begin()
    loss = protection.forward(model, next(stage.batches(2)))[1].get("o_lora/orthogonality")
    return 0.0 if loss is None else float(loss.detach())


@pytest.mark.parametrize("form", ["absolute", "squares"])
def test_the_terms_are_those_of_the_paper(form: str) -> None:
    """Of a second adapter with what was remembered of the first one, and its gradient is not 0."""
    method = build({"name": "o_lora", "lambda_1": 0.3, "lambda_2": 0.1, "orthogonality": form})
    first = adapted()
    stages.learn([method], stages.stage(first, 1, "causal"))
    earlier = copies(first)
    assert list(method._adapters) == ["d1"]
    second = adapted(merged(first), 1, r=3)
    assert the_term(method, second, 2) == pytest.approx(
        0.3 * overlaps(copies(second), [earlier], form == "absolute"), rel=1e-4
    )
    terms = method.extra_losses(stages.stage(second, 2, "causal"), {}, None)
    wanted = sum(float(p.detach().double().norm()) for n, p in second.named_parameters() if "lora_" in n)
    assert float(terms["norms"].detach()) == pytest.approx(0.1 * wanted, rel=1e-5)
    terms["orthogonality"].backward()
    assert all(bool(a.grad.any()) for a in matrices_of(second, "A").values())


def test_adapters_that_are_frozen_beside_the_new_one_count_once() -> None:
    method = build({"name": "o_lora", "lambda_1": 1.0})
    model = adapted()
    kept = copies(model)
    model.add_adapter("next", LoraConfig(target_modules=TARGETS, r=4))
    model.set_adapter("next")
    assert the_term(method, model, 1) == pytest.approx(overlaps(copies(model), [kept]), rel=1e-4)
    method = build({"name": "o_lora", "lambda_1": 1.0})
    stages.learn([method], stages.stage(model := adapted(), 1, "causal"))
    kept = copies(model)
    model.add_adapter("next", LoraConfig(target_modules=TARGETS, r=4))
    model.set_adapter("next")
    assert the_term(method, model, 2) == pytest.approx(overlaps(copies(model), [kept]), rel=1e-4)


def test_the_same_adapter_cannot_be_orthogonal_to_itself() -> None:
    """What the message advises works: merged, with a new adapter; or a penalty."""
    method = build("o_lora")
    stages.learn([method], stages.stage(model := adapted(), 1, "causal"))
    with pytest.raises(MethodError, match=r"the model has that of 'd1'\. Merge it .* use a penalty, such as 'mas'"):
        stages.begin([method], stages.stage(model, 2, "causal"))
    stages.learn([build({"name": "mas", "samples": 2})], stages.stage(copy.deepcopy(model), 2, "causal"))
    stages.learn([method], stages.stage(adapted(merged(model), 1), 2, "causal"))
    assert list(method._adapters) == ["d1", "d2"]


def test_the_options_of_an_adapter_are_refused_where_the_model_brings_one() -> None:
    model, methods = adapted(), [build({"name": "o_lora", "r": 8})]
    with pytest.raises(MethodError, match=r"option 'r': the model already has LoRA adapters.*Remove the option"):
        stages.learn(methods, stages.stage(model, 1, "causal"))


def train(model: nn.Module, folder: Path, methods: list[Any], steps: int = 3) -> None:
    """A domain in a Trainer."""
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(folder / "out"), **OPTIONS | {"max_steps": steps}),
        train_dataset=rows(),
        data_collator=collator("gpt2"),
    )
    protect(trainer, methods, memory=folder / "memory").train()


def test_in_a_trainer_the_second_adapter_turns_away_from_the_first(tmp_path: Path) -> None:
    """Beside a penalty on the effective weights, too."""
    left = []
    for strength in (0.0, 50.0):
        folder, methods = tmp_path / str(strength), [{"name": "o_lora", "lambda_1": strength}]
        first = adapted()
        train(first, folder, [*methods, {"name": "mas", "samples": 4}])
        earlier = copies(first)
        second = adapted(merged(first), 1)
        train(second, folder, [*methods, {"name": "mas", "samples": 4}], 12)
        left.append(overlaps(copies(second), [earlier]))
    assert left[1] < 0.7 * left[0]


@pytest.mark.parametrize(
    "make", [tiny.model, lambda kind: get_peft_model(tiny.model(kind), AdaLoraConfig(total_step=9))]
)
def test_without_lora_it_says_what_to_add(make: Any, tmp_path: Path) -> None:
    with pytest.raises(MethodError, match=r"Give it a model with LoRA adapters \(`peft.get_peft_model`\), or use"):
        train(make("llama"), tmp_path, ["o_lora"])
    train(adapted(), tmp_path, ["o_lora"])


def test_a_peft_folder_as_base_counts_as_an_earlier_adapter(tmp_path: Path) -> None:
    """In the layers that it changes, from the first domain on; the others have earlier domains only."""
    model = adapted()
    model.save_pretrained(tmp_path)
    plain = with_adapter(lambda: tiny.model("llama"), str(tmp_path))
    kept = directions_of(plain)
    assert {path: torch.equal(a, kept[path]) for path, a in copies(model).items()} == dict.fromkeys(kept, True)
    method = build({"name": "o_lora", "lambda_1": 1.0, "target_modules": ["q_proj", "k_proj"], "lora_dropout": 0.0})
    seen: list[float] = []

    def look(protection: Protection, batch: Any) -> None:
        earlier = [
            kept,
            {
                k.removeprefix("base_model.model.").removesuffix(".lora_A.weight"): v
                for learnt in method._adapters.values()
                for k, v in learnt.items()
                if "lora_A" in k
            },
        ]
        found = method.extra_losses(protection.stage, {}, None)["orthogonality"]
        seen.append(float(found.detach()) / overlaps(copies(protection.stage.model), earlier))

    for index in (1, 2):
        stage = stages.stage(plain, index, "causal", steps=1)
        stages.learn([method], stage, each=look)
        plain = stage.model
        again = build({"name": "o_lora", "lambda_1": 1.0, "target_modules": ["q_proj", "k_proj"], "lora_dropout": 0.0})
        again.load_memory(method.memory())
        method = again
    assert seen == [pytest.approx(1, rel=1e-4)] * 2
    assert not directions_of(tiny.model("llama"))
