"""What is tried with each kind of PEFT adapter; ``python tests/adapters_page.py`` writes docs/adapters.md."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import peft
import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

import stages
import tiny
import tried_table
from everlearn.errors import EverlearnError
from everlearn.model.peft_adapter import merged
from everlearn.model.quantising import quantised
from everlearn.protecting import protect

PAGE = Path(__file__).parents[1] / "docs" / "adapters.md"
TARGETS = ["q_proj", "v_proj", "down_proj"]
LORA: dict[str, Any] = {"target_modules": TARGETS, "r": 4}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", LORA),
    "rsLoRA": ("LoraConfig", {**LORA, "use_rslora": True}),
    "DoRA": ("LoraConfig", {**LORA, "use_dora": True}),
    "PiSSA": ("LoraConfig", {**LORA, "init_lora_weights": "pissa"}),
    "OLoRA": ("LoraConfig", {**LORA, "init_lora_weights": "olora"}),
    "new tokens": ("LoraConfig", {**LORA, "trainable_token_indices": [380, 381]}),
    "QLoRA, 4 bits": ("LoraConfig", LORA),
    "QLoRA, 8 bits": ("LoraConfig", LORA),
    "LoRA and a whole head": ("LoraConfig", {**LORA, "modules_to_save": ["lm_head"]}),
    "LoRA with biases": ("LoraConfig", {**LORA, "bias": "all"}),
    "AdaLoRA": ("AdaLoraConfig", {"target_modules": TARGETS, "total_step": 10}),
    "IA³": ("IA3Config", {"target_modules": TARGETS, "feedforward_modules": TARGETS[-1:]}),
    "VeRA": ("VeraConfig", {"target_modules": TARGETS[:1]}),
    "LoHa": ("LoHaConfig", {"target_modules": TARGETS}),
    "LoKr": ("LoKrConfig", {"target_modules": TARGETS}),
    "VB-LoRA": ("VBLoRAConfig", {"target_modules": TARGETS, "vector_length": 4}),
    "RandLoRA": ("RandLoraConfig", {"target_modules": TARGETS, "r": 4}),
    "FourierFT": ("FourierFTConfig", {"target_modules": TARGETS, "n_frequency": 20}),
    "OFT": ("OFTConfig", {"target_modules": TARGETS, "oft_block_size": 8}),
    "BOFT": ("BOFTConfig", {"target_modules": TARGETS, "boft_block_size": 8}),
    "LN tuning": ("LNTuningConfig", {"task_type": "CAUSAL_LM"}),
    "prompt tuning": ("PromptTuningConfig", {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3}),
}
FOUR_BITS = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
QUANTISED = {"QLoRA, 4 bits": FOUR_BITS, "QLoRA, 8 bits": {"load_in_8bit": True}}
METHODS: dict[str, dict[str, object]] = {
    "mas": {"samples": 2},
    "si": {},
    "budget": {"samples": 2, "probe": 2, "checks": 1, "general": None},
    "o_lora": {},
    "replay": {},
}
TRAINING: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "use_cpu": tiny.USE_CPU,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_strategy": "no",
}
COLUMNS = ("adapter", "PEFT's configuration", *METHODS, "loads with PEFT", "merged, in transformers")


def can_be_tried(kind: str) -> bool:
    """Return whether the library that a kind needs is installed."""
    return kind not in QUANTISED or importlib.util.find_spec("bitsandbytes") is not None


def base(kind: str) -> Any:
    """Return the tiny model to which the adapter is added; those of bitsandbytes are in whole blocks."""
    if kind not in QUANTISED:
        return tiny.model("llama")
    whole = tiny.model("llama", hidden_size=64, intermediate_size=128, head_dim=16)
    return quantised(whole, QUANTISED[kind], torch.device("cpu"))


def adapted(kind: str) -> PeftModel:
    """Return a tiny model with an adapter that does something."""
    torch.manual_seed(0)
    cls, options = KINDS[kind]
    model = get_peft_model(base(kind), getattr(peft, cls)(**options)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def learn(kind: str, method: str) -> None:
    """Learn two domains with `protect` and the same adapter; one if another adapter must follow."""
    model = adapted(kind)
    rows = [{"input_ids": block["input_ids"].tolist()} for block in stages.blocks(4, 1)]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for steps in (2,) if method == "o_lora" else (1, 2):
            trainer = Trainer(
                model=model,
                args=TrainingArguments(folder, max_steps=steps, **TRAINING),
                train_dataset=rows,
                data_collator=DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False),
                processing_class=tiny.tokenizer(),
            )
            protect(trainer, [{"name": method, **METHODS[method]}], memory=Path(folder) / "memory").train()


def _logits(model: nn.Module) -> Tensor:
    return model(input_ids=torch.arange(5, 29)[None]).logits.detach()


def reloads(kind: str) -> bool:
    """Return whether a saved adapter is the same model when PEFT loads it again."""
    model = adapted(kind)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = PeftModel.from_pretrained(base(kind), folder).eval()
    # bitsandbytes computes in 16 bits where nothing needs a gradient
    return torch.allclose(_logits(again), _logits(model), atol=1e-2 if kind in QUANTISED else 1e-5)


def merges(kind: str) -> bool:
    """Return whether the merged model is the same when plain transformers loads it."""
    model = adapted(kind)
    wanted = _logits(model)
    with tempfile.TemporaryDirectory() as folder:
        plain = merged(model)
        plain.save_pretrained(folder)
        again = type(plain).from_pretrained(folder).eval()
    return torch.allclose(_logits(again), wanted, atol=1e-4)


def _outcome(attempt: Any, *arguments: str) -> str:
    try:
        found = attempt(*arguments)
    except EverlearnError as error:
        return f"no: {error}"
    except (AttributeError, NotImplementedError, ValueError) as error:
        return f"no (PEFT): {type(error).__name__}"
    return "no" if found is False else "yes"


def row(kind: str) -> str:
    """Return the line of the page for a kind."""
    cls, options = KINDS[kind]
    shown = ", ".join(f"{name}={value!r}" for name, value in options.items() if name != "target_modules")
    beside = "".join(f", `{name}={value!r}`" for name, value in QUANTISED.get(kind, {}).items())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cells = [
            kind,
            f"`{cls}({shown})`{beside}",
            *(_outcome(learn, kind, method) for method in METHODS),
            _outcome(reloads, kind),
            _outcome(merges, kind),
        ]
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def committed() -> dict[str, str]:
    """Return the lines of the page by kind."""
    return tried_table.rows_of(PAGE)


def main() -> None:
    """Write the table."""
    logging.disable(logging.WARNING)
    tried_table.write(PAGE, tried_table.table(COLUMNS, map(row, KINDS)))


if __name__ == "__main__":
    main()
