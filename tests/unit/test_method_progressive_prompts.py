"""Progressive Prompts: the newest prompt stands first, earlier ones never move, and all are read that there are."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hard_attention_checks import reading
from torch import Tensor

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.attachment import attached, detach
from everlearn.methods.engine.protection import Protection
from everlearn.methods.prompts.progressive_prompts import ProgressivePrompt, ProgressivePrompts
from everlearn.predictors.decoding import Ending, continuation, decode

N = 3


def learnt(method: ProgressivePrompts, model: Any, objective: str, domains: int = 3) -> Any:
    for index in range(1, domains + 1):
        at = stages.stage(model, index, objective, steps=2)
        stages.learn([method], at)
    return at


def joined(model: Any, prompts: list[Tensor], ids: Tensor) -> Tensor:
    """[P_t; …; P_1; X] in float64; `prompts` from P_1 to P_t."""
    words = model.get_input_embeddings().weight.double()[ids]
    return torch.cat([*(p.double().expand(len(ids), -1, -1) for p in reversed(prompts)), words], 1)


def test_an_encoder_reads_the_newest_prompt_first_and_the_decoder_sees_all() -> None:
    """Nats per label against transformers' own forward pass of the joined embeddings, in float64."""
    method, model = ProgressivePrompts(n_tokens=N), tiny.model("t5")
    at = learnt(method, model, "text-to-text")
    prompts = list(method._prompts.values())
    assert [len(prompt) for prompt in prompts] == [N] * 3
    tested = method.test_model(copy.deepcopy(model).double(), reading(at, None))
    batch = next(at.batches(3))
    found = at.objective.forward(tested, batch).losses
    mask = F.pad(batch["attention_mask"], (3 * N, 0), value=1)
    with torch.no_grad():
        logits = model.double()(
            inputs_embeds=joined(model, prompts, batch["input_ids"]),
            attention_mask=mask,
            decoder_input_ids=batch["decoder_input_ids"],
        ).logits
    expected = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)  # the loss itself is float32


@pytest.mark.parametrize(("architecture", "objective"), [("gpt2", "causal"), ("roberta", "masked")])
def test_other_models_read_the_same(architecture: str, objective: str) -> None:
    method, model = ProgressivePrompts(n_tokens=N), tiny.model(architecture)
    at = learnt(method, model, objective)
    ids = torch.arange(5, 53).view(2, 24)
    tested = method.test_model(copy.deepcopy(model).double(), reading(at, None))
    found = tested.base_model(input_ids=ids).last_hidden_state
    embedded = joined(model, list(method._prompts.values()), ids)
    expected = model.double().base_model(inputs_embeds=embedded).last_hidden_state[:, 3 * N :]
    torch.testing.assert_close(found, expected)


def test_only_the_newest_prompt_learns() -> None:
    method, model = ProgressivePrompts(n_tokens=N), tiny.model("t5")
    start = stages.weights(model)
    learnt(method, model, "text-to-text", 2)
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    before = {name: value.clone() for name, value in method._prompts.items()}
    at = stages.stage(model, 3, "text-to-text")
    held: list[Tensor] = []
    stages.learn(
        [method],
        at,
        weight_decay=0.1,
        each=lambda *_: held.append(attached(model, method.name).prompt()[N:].detach().clone()),
    )
    expected = torch.cat([before["d2"], before["d1"]])
    assert all(torch.equal(earlier, expected) for earlier in held), "in front of P_1 stands P_2"
    assert all(torch.equal(method._prompts[name], value) for name, value in before.items())


def test_a_prompt_begins_as_random_words() -> None:
    model = tiny.model("t5")
    at = stages.stage(model, 1, "text-to-text")
    drawn = []
    for _ in range(2):
        method = ProgressivePrompts(n_tokens=50)
        Protection([method], at).begin()
        drawn.append(detach(model, method.name).vectors)
    same = (drawn[0][:, None] == model.get_input_embeddings().weight).all(2)
    assert same.any(1).all()
    assert len(same.int().argmax(1).unique()) > 30
    assert torch.equal(*drawn), "the same words for the same run and domain: a resumed one draws them again"


def test_the_residual_mlp_is_dropped_when_a_domain_ends() -> None:
    method, model = ProgressivePrompts(n_tokens=N, bottleneck=8), tiny.model("t5")
    at = stages.stage(model, 1, "text-to-text", steps=2)
    protection = Protection([method], at)
    protection.begin()
    added: ProgressivePrompt = attached(model, method.name)
    first, second = added.mlp[0], added.mlp[2]
    inner = torch.relu(added.vectors @ first.weight.T + first.bias)
    expected = added.vectors + inner @ second.weight.T + second.bias
    torch.testing.assert_close(added.prompt(), expected)
    trained = sum(p.numel() for p in added.parameters() if p.requires_grad)
    assert method.cost(model).parameters == trained == N * 32 + 2 * 32 * 8 + 8 + 32
    protection.end()
    assert method.memory().tensors.keys() == {"d1"}
    torch.testing.assert_close(method._prompts["d1"], expected.detach())


def test_at_test_all_prompts_or_those_up_to_the_domains_own() -> None:
    method, model = ProgressivePrompts(n_tokens=N), tiny.model("t5")
    at = learnt(method, model, "text-to-text")
    own = build("progressive_prompts_by_domain")
    own.load_memory(method.memory())
    assert not method.needs.domain_id_test
    assert own.needs.domain_id_test
    newest_first = list(method._prompts.values())[::-1]
    for domain, known in (("d1", 1), ("d2", 2), ("d3", 3), ("d4", 0), (None, 0)):
        for asked, count in ((method, 3), (own, known)):
            tested = asked.test_model(copy.deepcopy(model), reading(at, domain))
            assert hasattr(tested, f"everlearn_{method.name}") is (count > 0)
            if count:
                found = attached(tested, method.name).prompt()
                assert torch.equal(found, torch.cat(newest_first[-count:]))


def test_answers_are_written_behind_the_prompts() -> None:
    """Greedy decoding that encodes once gives what reading everything again gives."""
    method, model = ProgressivePrompts(n_tokens=N), tiny.model("t5")
    at = learnt(method, model, "text-to-text")
    tested = method.test_model(copy.deepcopy(model), reading(at, None)).eval()
    batch = next(at.batches(3))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        written = decode(continuation(tested, inputs), Ending(4))
        ids = torch.full((3, 1), 1)
        for _ in range(4):
            chosen = tested(**inputs, decoder_input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)
            ids = torch.cat([ids, chosen[:, None]], 1)
    assert written == ids[:, 1:].tolist()


def test_the_published_rate_and_decay_reach_the_optimizer() -> None:
    groups = [{"lr": 1e-3, "weight_decay": 0.01, "params": []}]
    at = stages.stage(tiny.model("t5"), 1, "text-to-text")
    assert ProgressivePrompts().parameter_groups(at, groups) == [{"lr": 0.3, "weight_decay": 1e-5, "params": []}]
    assert ProgressivePrompts(learning_rate=None, weight_decay=None).parameter_groups(at, groups) == groups


def test_too_many_prompts_are_refused() -> None:
    model, method = tiny.model("gpt2", n_positions=24 + 2 * N), ProgressivePrompts(n_tokens=N)
    learnt(method, model, "causal", 2)
    with pytest.raises(MethodError, match=r"9 prompt tokens and a text of 24 do not fit the model's 30 positions"):
        learnt(method, model, "causal", 3)
    first, second = ProgressivePrompts(n_tokens=N), build("dap_adapter")
    with pytest.raises(MethodError, match="'progressive_prompts' trains nothing but what it adds"):
        first.check(stages.setting(model, [first, second], "causal"))
