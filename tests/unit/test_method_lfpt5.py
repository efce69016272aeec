"""LFPT5, and the prefix that it shares with a row."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hard_attention_checks import reading
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

import stages
import tiny
from everlearn.data.tokenize import Encoder
from everlearn.errors import MethodError
from everlearn.evaluation import make_task
from everlearn.evaluation.task import Conditions, task_config
from everlearn.methods.adapters.bottleneck import bottlenecks
from everlearn.methods.adapters.moe_lora import MoELoRA
from everlearn.methods.composition.sapt_lora import SAPTLoRA
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import Protection
from everlearn.methods.prompts import lfpt5 as lfpt5_module
from everlearn.methods.prompts.generator_rows import WrittenPairs
from everlearn.methods.prompts.lfpt5 import DRAWS, LFPT5, CarriedPrompt
from everlearn.model.objectives import make_objective
from everlearn.model.shared_prompt import after_one_prompt, can_share_prompts
from everlearn.predictors.decoding import decode
from everlearn.predictors.predictor import Checkpoint
from everlearn.tasks import likelihood
from everlearn.tasks.likelihood import MOST_BEHIND, Option, _shares_prompts

# -- LFPT5: one prompt behind the text, lessons in writing examples, pseudo-samples and the divergence on them ---------


N = 5
WRITING = {"separator": "J", "top_k": 400, "samples": 6, "pseudo_tokens": 20, "repetition_penalty": 1.0}
"""What a random model writes has this separator now and then."""


def method(**options: Any) -> LFPT5:
    return LFPT5(**({"n_tokens": N, "pseudo_batch": 3, **WRITING} | options))


def learnt(lfpt5: LFPT5, model: nn.Module, objective: str = "text-to-text", domains: int = 1) -> Any:
    for index in range(1, domains + 1):
        at = stages.stage(model, index, objective, steps=2)
        stages.learn([lfpt5], at)
    return at


def likely(model: Any, prompt: Tensor, ids: list[int], labels: list[int]) -> Tensor:
    """Log-probabilities at each label of one example without padding, [K, V]: the encoder reads [X; P], in float64."""
    words = model.shared.weight
    read = torch.cat([words[torch.tensor(ids)], prompt.double()])[None]
    answer = torch.tensor([[model.config.decoder_start_token_id, *labels[:-1]]])
    return model(inputs_embeds=read, decoder_input_ids=answer).logits[0].log_softmax(-1)


def nats(logs: Tensor, labels: list[int]) -> Tensor:
    return -torch.stack([row[label] for row, label in zip(logs, labels, strict=True)]).mean()


def asked(domain: str, *parts: list[int]) -> tuple[list[int], list[int]]:
    """A question for an example, and what is to be answered, as the special tokens <s> (0) … </s> (2) stand here."""
    ids = tiny.tokenizer()(f"__gen__ {domain}", add_special_tokens=False)["input_ids"]
    return [0, *ids, 2], [0, *(token for part in parts for token in part), 2]


def test_losses_are_those_of_the_equation() -> None:
    """Task, writing, pseudo-samples and divergence, each from the formula in float64, at every step."""
    lfpt5, model = method(lm=0.3, pseudo=0.7, divergence=0.2), tiny.model("t5")
    learnt(lfpt5, model)
    before = lfpt5._prompt.clone()
    at, plain = stages.stage(model, 2, "text-to-text"), copy.deepcopy(model).double()
    separator = tiny.tokenizer()("J", add_special_tokens=False)["input_ids"]
    expected: list[dict[str, Tensor]] = []

    def bare(ids: list[int]) -> list[int]:
        ids = ids[1:] if ids[0] == 0 else ids
        return ids[:-1] if ids[-1] == 2 else ids

    def writing(prompt: Tensor, block: dict[str, Any], domain: str) -> Tensor:
        question, lesson = asked(domain, bare(block["input_ids"]), separator, bare(block["labels"]))
        return nats(likely(plain, prompt, question, lesson), lesson)

    @torch.no_grad()
    def look(protection: Any, batch: dict[str, Tensor]) -> None:
        prompt = attached(model, "lfpt5").vectors
        rows = [
            {"input_ids": ids[mask > 0].tolist(), "labels": labels[labels >= 0].tolist()}
            for ids, mask, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True)
        ]
        pseudo = [({k: v.tolist() for k, v in block.items()}, domain) for block, domain in lfpt5._sample(at)]
        assert len(pseudo) == 3
        assert {domain for _, domain in pseudo} == {"d1"}
        solved, away = [], []
        for block, _ in pseudo:
            now, then = (likely(plain, p, block["input_ids"], block["labels"]) for p in (prompt, before))
            solved.append(nats(now, block["labels"]))
            away.append(sum((p * (p.log() - q.log())).sum() for p, q in zip(then.exp(), now.exp(), strict=True)))
        each = [nats(likely(plain, prompt, r["input_ids"], r["labels"]), r["labels"]) for r in rows]
        weights = torch.tensor([len(r["labels"]) for r in rows])
        expected.append(
            {
                "loss": (torch.stack(each) * weights).sum() / weights.sum(),
                "lfpt5/lm": 0.3 * torch.stack([writing(prompt, row, "d2") for row in rows]).mean(),
                "lfpt5/pseudo_lm": 0.3 * 0.7 * torch.stack([writing(prompt, *one) for one in pseudo]).mean(),
                "lfpt5/pseudo": 0.7 * torch.stack(solved).mean(),
                "lfpt5/divergence": 0.2 * torch.stack(away).mean(),
            }
        )

    parts = stages.learn([lfpt5], at, lr=0.1, each=look)
    for found, wanted in zip(parts, expected, strict=True):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name].double(), value, atol=1e-5, rtol=1e-4, msg=name)
    assert expected[0]["lfpt5/divergence"] < 1e-9 < expected[-1]["lfpt5/divergence"]


def test_an_example_is_written_and_read_again() -> None:
    writer = WrittenPairs(Encoder(tiny.tokenizer(), "encoder-decoder"), "write of {domain}", "rows")
    block = {"input_ids": np.array([0, 20, 21, 22, 2], np.int32), "labels": np.array([0, 30, 2], np.int32)}
    lesson = writer.lesson(block, "papers")
    separator = tiny.tokenizer()("rows", add_special_tokens=False)["input_ids"]
    question = tiny.tokenizer()("write of papers")["input_ids"]
    assert lesson["input_ids"].tolist() == question == writer.prompt("papers")
    assert lesson["labels"].tolist() == [0, 20, 21, 22, *separator, 30, 2]
    again = writer.block(lesson["labels"].tolist())
    assert all(np.array_equal(again[key], block[key]) for key in block)
    assert writer.block(lesson["labels"].tolist()[:-1])["labels"].tolist() == [0, 30, 2], "an end is no part of it"
    for broken in ([20, 21, 30], [*separator, 30], [20, *separator], []):
        assert writer.block(broken) is None


def test_pseudo_samples_are_the_same_for_the_same_seed_and_gone_after_the_domain() -> None:
    found = []
    for seed in (0, 0, 1):
        lfpt5, model = method(), tiny.model("t5")
        stages.learn([lfpt5], stages.stage(model, 1, "text-to-text", steps=1))
        assert lfpt5.memory().tensors.keys() == {"prompt"}
        at = stages.stage(model, 2, "text-to-text", seed=seed)
        protection = Protection([lfpt5], at)
        protection.begin()
        within = lfpt5.memory()
        found.append({name: value for name, value in within.tensors.items() if name != "prompt"})
        again = method()
        again.load_memory(within)
        assert again.memory().facts == within.facts
        assert all(torch.equal(value, within.tensors[name]) for name, value in again.memory().tensors.items())
        protection.end()
        assert lfpt5.memory().tensors.keys() == {"prompt"}
        assert not lfpt5.memory().facts
    assert found[0]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    assert any(name not in found[2] or not torch.equal(value, found[2][name]) for name, value in found[0].items())


def test_what_the_model_cannot_write_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    lfpt5, model = method(separator="tensors flow graphs nodes edges"), tiny.model("t5")
    learnt(lfpt5, model)
    at, written = stages.stage(model, 2, "text-to-text"), list[int]()

    def counted(steps: Any, ending: Any) -> Any:
        rows = decode(steps, ending)
        written.extend(len(row) for row in rows)
        return rows

    monkeypatch.setattr(lfpt5_module, "decode", counted)
    parts = stages.learn([lfpt5], at)
    assert at.notes == [
        "Method 'lfpt5': of 24 generated examples of 'd1' only 0 had a prompt and an answer (6 were requested). The "
        f"others have {sum(written) / 24:.1f} tokens on average; {written.count(20)} ran to the limit of 20."
    ]
    assert parts[0].keys() == {"loss", "lfpt5/lm"}


@pytest.mark.parametrize(("architecture", "objective", "times"), [("gpt2", "causal", 1), ("t5", "text-to-text", DRAWS)])
def test_what_is_written_is_what_is_declared(
    architecture: str, objective: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder writes as many rows as are wanted; an encoder-decoder at most so many times as many."""
    lfpt5, model = method(separator="tensors flow graphs nodes edges"), tiny.model(architecture)
    written: list[int] = []

    def spied(steps: Any, ending: Any) -> Any:
        written.append(len(ending.draws))
        return decode(steps, ending)

    monkeypatch.setattr(lfpt5_module, "decode", spied)
    stages.begin([lfpt5], stages.stage(model, 3, objective))
    assert sum(written) == 2 * times * 6  # of d1 and d2 each
    cost = lfpt5.cost(tiny.model(architecture))
    assert cost.outside(12, earlier=2) == sum(written) / 3
    assert cost.outside(12) == 0
    assert cost.at_most == (times > 1)


def test_the_prompt_is_carried_on_and_the_model_is_not_touched() -> None:
    lfpt5, model = method(), tiny.model("t5")
    start = stages.weights(model)
    learnt(lfpt5, model)
    first = lfpt5._prompt.clone()
    at = stages.stage(model, 2, "text-to-text")
    protection = Protection([lfpt5], at)
    protection.begin()
    added = attached(model, "lfpt5")
    assert torch.equal(added.vectors, first)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["everlearn_lfpt5.vectors"]
    protection.end()
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    for domain in ("d1", "d2", None):
        tested = lfpt5.test_model(copy.deepcopy(model), reading(at, domain))
        assert torch.equal(attached(tested, "lfpt5").vectors, lfpt5._prompt)


def test_where_the_prompt_begins() -> None:
    model = tiny.model("t5")
    at = stages.stage(model, 1, "text-to-text")
    lfpt5 = method(words=["axes", "model learns"])
    Protection([lfpt5], at).begin()
    found, words = attached(model, "lfpt5").vectors, model.shared.weight
    for vector, text in zip(found, ("axes", "model learns"), strict=False):
        ids = tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]
        torch.testing.assert_close(vector, words[ids].mean(0))
    assert len(found) == N
    assert all((words == vector).all(1).any() for vector in found[2:])


def test_a_decoder_writes_text_without_being_asked() -> None:
    lfpt5, model = method(), tiny.model("gpt2")
    learnt(lfpt5, model, "causal")
    at = stages.stage(model, 2, "causal")
    protection = Protection([lfpt5], at)
    protection.begin()
    rows = lfpt5._pseudo["d1"]
    assert [len(row["input_ids"]) for row in rows] == [20] * 6
    assert all(row["input_ids"][0] == tiny.tokenizer().bos_token_id for row in rows)
    protection.end()
    parts = stages.learn([lfpt5], stages.stage(model, 2, "causal"), lr=0.1)
    assert parts[0].keys() == {"loss", "lfpt5/pseudo", "lfpt5/divergence"}
    assert 0 <= parts[0]["lfpt5/divergence"] < 1e-6 < parts[-1]["lfpt5/divergence"]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(MethodError, match=r"those of a decoder are packed into rows\. Set `objective: causal`"):
        method().check(stages.setting(tiny.model("gpt2"), [], "text-to-text"))
    with pytest.raises(MethodError, match="does not work with objective 'masked'"):
        method().check(stages.setting(tiny.model("roberta"), [], "masked"))
    with pytest.raises(MethodError, match="300 prompt tokens and a text of 24"):
        LFPT5().check(stages.setting(tiny.model("gpt2"), [], "causal"))
    assert method(pseudo=0, divergence=0)._uses_pseudo is False


# -- Which models may read one prompt for many texts: those that find the same as with a row for each text -------------


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
