"""Which models may read one prompt for many texts: those that find the same as with a row for each text."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

import stages
import tiny
from everlearn.evaluation import make_task
from everlearn.evaluation.task import Conditions, task_config
from everlearn.methods.adapters.bottleneck import bottlenecks
from everlearn.methods.adapters.moe_lora import MoELoRA
from everlearn.methods.composition.sapt_lora import SAPTLoRA
from everlearn.methods.prompts.lfpt5 import CarriedPrompt
from everlearn.model.objectives import make_objective
from everlearn.model.one_prompt import after_one_prompt, can_share_prompts
from everlearn.predictors.predictor import Checkpoint
from everlearn.tasks import likelihood
from everlearn.tasks.likelihood import MOST_BEHIND, Option, _shares_prompts

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PROMPT, TEXTS = [5, 6, 7, 8, 9, 10], [[11, 12, 13], [14, 15], [16, 17, 18, 19]]
LONGEST = 10


def apart(model: Any) -> torch.Tensor:
    """Logits at the tokens of each text, a row for each."""
    with torch.no_grad():
        return torch.cat([model(torch.tensor([PROMPT + text])).logits[0, len(PROMPT) :] for text in TEXTS])


def together(model: Any) -> torch.Tensor:
    """The same, all texts after one prompt."""
    ids = torch.tensor([[*PROMPT, *(token for text in TEXTS for token in text)]])
    mask, positions = after_one_prompt(len(PROMPT), [len(text) for text in TEXTS], ids.shape[1])
    with torch.no_grad():
        logits = model(ids, attention_mask=mask[None, None], position_ids=positions[None]).logits
    return logits[0, len(PROMPT) :]


@pytest.mark.parametrize(
    ("architecture", "options", "can"),
    [
        ("gpt2", {}, True),
        ("gpt_neox", {}, True),
        ("llama", {}, True),
        ("mistral", {"sliding_window": LONGEST}, True),
        ("mistral", {"sliding_window": LONGEST - 1}, False),
        ("gemma2", {"attn_implementation": "eager"}, False),
        ("llama", {"attn_implementation": "eager"}, False),
    ],
)
def test_who_can(architecture: str, options: dict[str, Any], can: bool) -> None:
    model = tiny.model(architecture, **{k: v for k, v in options.items() if k != "attn_implementation"})
    model.set_attn_implementation(options.get("attn_implementation", "sdpa"))
    assert can_share_prompts(model, LONGEST) is can
    if can:
        torch.testing.assert_close(together(model), apart(model), rtol=1e-5, atol=1e-5)


def test_many_options_have_rows_of_their_own() -> None:
    """In one row each would be held against all others."""
    model = tiny.model("llama")
    predictor = Checkpoint(model, make_objective("causal", model, tiny.tokenizer()))

    def shared(tokens: int, options: int, kind: str = "decoder") -> bool:
        questions = [[Option(0, number, PROMPT, [11] * tokens) for number in range(options)]]
        return _shares_prompts(SimpleNamespace(kind=kind), predictor, questions)

    assert shared(4, MOST_BEHIND // 4)
    assert not shared(4, MOST_BEHIND // 4 + 1)
    assert shared(4, MOST_BEHIND, "encoder-decoder"), "there every option is a row of the decoder in any case"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}),
        ("falcon_h1", {"mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4}),
        ("llama4_text", {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 32}),
    ],
)
def test_what_is_not_attention_to_all_reads_the_row_as_a_whole(kind: str, options: dict[str, Any]) -> None:
    """Architectures that a user may register: their other layers know no mask, so texts would read each other."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL, **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    assert (together(model) - apart(model)).abs().max() > 1e-3, "or there would be nothing to refuse"
    assert not can_share_prompts(model, LONGEST)


class Smoothed(torch.nn.Module):
    """A layer of somebody else's package that looks at its row as a whole."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        found = self.inner(states)
        return found + found.mean(1, keepdim=True)


def test_modules_of_other_packages_have_rows_of_their_own() -> None:
    model = tiny.model("llama")
    model.set_attn_implementation("sdpa")
    for layer in model.model.layers:
        layer.mlp = Smoothed(layer.mlp)
    assert (together(model) - apart(model)).abs().max() > 1e-3
    assert not can_share_prompts(model, LONGEST)


def test_low_rank_matrices_of_peft_stand_in_a_shared_row() -> None:
    model = get_peft_model(tiny.model("llama"), LoraConfig(r=2, init_lora_weights=False)).base_model.model
    model.set_attn_implementation("sdpa")
    assert can_share_prompts(model, LONGEST)
    torch.testing.assert_close(together(model), apart(model), rtol=1e-5, atol=1e-5)


def with_soft_prompt(model: Any) -> None:
    CarriedPrompt(torch.randn(3, model.get_input_embeddings().weight.shape[1])).attach(model, "prompt")


def with_adapter(model: Any) -> None:
    bottlenecks(model, 2, "relu").attach(model, "adapter")


def with_experts(model: Any) -> None:
    method, setting = MoELoRA(experts=3, r=2), stages.stage(model, 1, "causal")
    stages.begin([method], setting)


def with_composed_blocks(model: Any) -> None:
    method, setting = SAPTLoRA(r=2), stages.stage(model, 1, "causal")
    stages.begin([method], setting)


@pytest.mark.parametrize(
    ("architecture", "addition", "can"),
    [
        ("llama", with_soft_prompt, True),
        ("gpt2", with_soft_prompt, True),
        ("bart", with_soft_prompt, True),
        ("t5", with_soft_prompt, True),
        ("gpt2", with_adapter, True),
        ("bart", with_adapter, True),
        ("llama", with_experts, True),
        ("llama", with_composed_blocks, False),
    ],
)
def test_what_methods_add_must_say_that_it_may_stand_in_a_shared_row(
    architecture: str, addition: Any, can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(architecture)
    model.set_attn_implementation("sdpa")
    torch.manual_seed(1)
    addition(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    assert can_share_prompts(model, LONGEST) is can
    words = " ".join(tiny.texts(30, 5)).split()
    texts = [words[start : start + 10] for start in range(0, 70, 10)]
    rows = [{"query": " ".join(t[:5]), "choices": [" ".join(t[5:7]), t[8], f"{t[9]} so"], "gold": 1} for t in texts]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = {"kind": "choice", "name": "asked", "test": str(tmp_path / "test.jsonl")}
    task = make_task(task_config(config, "end_tasks.0"))
    objective = make_objective(tiny.objective_of(architecture), model, tiny.tokenizer())

    def nats() -> torch.Tensor:
        how = Conditions(row="base", tokenizer=tiny.tokenizer(), objective=objective, batch_size=4)
        return torch.from_numpy(task.measure(Checkpoint(model, objective), how)["option_nats"])

    together = nats()
    monkeypatch.setattr(likelihood, "can_share_prompts", lambda *_: False)
    torch.testing.assert_close(together, nats(), rtol=1e-5, atol=1e-4)
