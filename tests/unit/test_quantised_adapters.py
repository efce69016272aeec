"""QLoRA adapters on a user's own model, with `protect`: penalties hold the rounded weight and its adapter."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from protected_run import OPTIONS, collator, rows
from torch import Tensor
from transformers import Trainer, TrainingArguments

import tiny
from everlearn.model.adapted import plain_view, weights_of
from everlearn.model.quantising import quantised
from everlearn.protecting import protect

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed (everlearn[quantized])"
)
FOUR = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
NF4 += [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
NF4 += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
"""The 16 values of QLoRA's number format (arXiv 2305.14314, appendix E)."""
EIGHT = {"load_in_8bit": True}
bits = pytest.mark.parametrize("options", [FOUR, EIGHT], ids=["4 bits", "8 bits"])


def rounded(weight: Tensor, options: dict[str, Any]) -> Tensor:
    """A weight as 4 bits (blocks of 64) or 8 bits (rows) represent it, in float64."""
    if options is EIGHT:  # bitsandbytes takes them in float16
        half = weight.half().double()
        scale = half.abs().amax(1, keepdim=True) / 127
        return (half / scale).round() * scale
    blocks = weight.double().reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    values = torch.tensor(NF4, dtype=torch.float64)
    nearest = (blocks / scale)[..., None].sub(values).abs().argmin(-1)
    return (values[nearest] * scale).reshape(weight.shape)


def own_model(options: dict[str, Any] | None, targets: Sequence[str] = ("q_proj", "down_proj")) -> PeftModel:
    """A user's model in few bits (None: in float32) with an adapter that does something, and dropout 0."""
    whole = tiny.model("llama", hidden_size=64, intermediate_size=128, head_dim=16)
    model = whole if options is None else quantised(whole, options, torch.device("cpu"))
    torch.manual_seed(1)
    made = get_peft_model(model, LoraConfig(r=4, target_modules=list(targets), init_lora_weights=False))
    assert isinstance(made, PeftModel)
    return made.eval()


def logits(model: torch.nn.Module) -> Tensor:
    found: Tensor = model(input_ids=torch.arange(5, 29)[None]).logits.detach()
    return found


@bits
def test_the_effective_weight_is_the_rounded_one_and_the_adapter(options: dict[str, Any]) -> None:
    model, whole = own_model(options), dict(own_model(None).get_base_model().named_parameters())
    # To evaluate on some CPUs, bitsandbytes changes the order of 4-bit weights and rounds their scales to 16 bits.
    for evaluated, off in ((False, 0.0), (True, 2**-8 if options is FOUR else 0.0)):
        if evaluated:
            logits(model)
        for name, weight in weights_of(model).items():
            if not weight.adapted:
                continue
            layer: Any = model.get_base_model().get_submodule(name.removesuffix(".weight"))
            a, b = (matrix["default"].weight.double() for matrix in (layer.lora_A, layer.lora_B))
            exact = whole[name.replace(".weight", ".base_layer.weight")]
            base = rounded(exact.detach(), options)
            found = weight.value().detach().double() - layer.scaling["default"] * (b @ a).detach()
            far = (found - base).abs() > off * base.abs() + 2e-6
            assert far.double().mean() < 1e-3  # some numbers are half way between two values
            assert weight.shape == base.shape


@bits
def test_the_plain_view_of_few_bits_computes_the_same_and_leaves_no_trace(options: dict[str, Any]) -> None:
    model = own_model(options)
    before, modules = logits(model), dict(model.named_modules())
    with plain_view(model) as plain:
        # bitsandbytes rounds the inputs of a layer to 8 bits, and to 16 beside 4 bits
        torch.testing.assert_close(logits(plain), before, rtol=0, atol=0.02)
        trained = {name for name, parameter in plain.named_parameters() if parameter.requires_grad}
        assert trained == {name for name, weight in weights_of(own_model(None)).items() if weight.adapted}
    assert dict(model.named_modules()).keys() == modules.keys()
    assert all(module is modules[name] for name, module in model.named_modules())
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("spec", ["mas", "ewc", "si"])
def test_a_qlora_adapter_is_held_by_a_penalty(spec: str, tmp_path: Path) -> None:
    def moved(strength: float) -> float:
        model, ends = own_model(FOUR), []
        method = {"name": spec, "strength": strength} | ({} if spec == "si" else {"samples": 4})
        for domain in (1, 2):
            trainer = Trainer(
                model=model,
                args=TrainingArguments(str(tmp_path / "out"), **OPTIONS),
                train_dataset=rows(seed=domain),
                data_collator=collator("llama"),
            )
            protect(trainer, [method], memory=tmp_path / str(strength), domain=f"d{domain}").train()
            ends.append([weight.value().detach() for weight in weights_of(model).values() if weight.adapted])
        return sum(float((last - first).norm()) for first, last in zip(*ends, strict=True))

    assert moved({"si": 1e6, "ewc": 1e5, "mas": 1e3}[spec]) < 0.99 * moved(0.0)
