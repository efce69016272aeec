"""Methods of `prompts/` against slow references: prompts of domains, progressive prompts."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hard_attention_checks import classifier, reading
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification

import stages
import tiny
from everlearn.config.arguments import training_arguments
from everlearn.data.loader import BlockLoader
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.engine.attachment import attached, detach
from everlearn.methods.engine.protection import Protection
from everlearn.methods.prompts.dap_prompt import DAPPrompt
from everlearn.methods.prompts.progressive_prompts import ProgressivePrompt, ProgressivePrompts
from everlearn.methods.prompts.soft_prompt import SoftPrompt
from everlearn.model.objectives import make_objective
from everlearn.predictors.decoding import Ending, continuation, decode
from everlearn.run.trainer import StageTrainer
from everlearn.tasks.fine_tuning import fine_tune
from everlearn.tasks.labelled import EndTask, LabelledSet

IDS = torch.arange(5, 53).view(2, 24)
N = 7


def prompt(model: nn.Module) -> SoftPrompt:
    generator = torch.Generator().manual_seed(1)
    return SoftPrompt(torch.randn(N, model.get_input_embeddings().weight.shape[1], generator=generator))


def learnt(method: DAPPrompt, model: nn.Module, domains: int = 2, **options: Any) -> Any:
    for index in range(1, domains + 1):
        at = stages.stage(model, index, **options)
        stages.learn([method], at)
    return at


def by_hand(model: Any, vectors: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Last hidden state behind the prompt, [B, S, H], of embeddings that are joined by hand."""
    words = model.get_input_embeddings()(ids)
    joined = torch.cat([vectors.expand(len(ids), -1, -1), words], 1)
    if mask is not None:
        mask = torch.cat([torch.ones(len(ids), N, dtype=mask.dtype), mask], 1)
    return model.base_model(inputs_embeds=joined, attention_mask=mask).last_hidden_state[:, N:]


@pytest.mark.parametrize("architecture", ["roberta", "bert", "distilbert", "gpt2", "gpt_neox", "llama", "gemma2"])
def test_the_forward_pass_is_that_of_joined_embeddings(architecture: str) -> None:
    model = tiny.model(architecture)
    plain = copy.deepcopy(model)
    mask = (torch.arange(24) < torch.tensor([[24], [17]])).long()
    added = prompt(model)
    added.attach(model, "dap_prompt")
    vectors = added.vectors
    with torch.no_grad():
        for given in (None, mask):
            found = model.base_model(input_ids=IDS, attention_mask=given)
            expected = by_hand(plain, vectors, IDS, given)
            real = torch.ones_like(IDS) if given is None else given
            torch.testing.assert_close(found.last_hidden_state[real > 0], expected[real > 0])
            if getattr(found, "pooler_output", None) is not None:
                torch.testing.assert_close(found.pooler_output, plain.base_model.pooler(expected))
        assert model(input_ids=IDS, output_hidden_states=True).hidden_states[0].shape[1] == 24
        double, plain64 = copy.deepcopy(model).double(), plain.double()
        expected = by_hand(plain64, vectors.double(), IDS)
        torch.testing.assert_close(double.base_model(input_ids=IDS).last_hidden_state, expected)
    detach(model, "dap_prompt")
    assert torch.equal(model(input_ids=IDS).logits, plain.float()(input_ids=IDS).logits)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_packed_documents_see_the_prompt_and_not_each_other(architecture: str, attention: str) -> None:
    """Each document of a packed row gives the losses that it gives alone."""
    model = tiny.model(architecture, attn_implementation=attention)
    objective = make_objective("causal", model, tiny.tokenizer())
    prompt(model).attach(model, "dap_prompt")
    ids = np.arange(10, 34, dtype=np.int32)
    row = {"input_ids": ids, "segments": (np.arange(24) >= 9).astype(np.int32)}
    with torch.no_grad():
        packed = objective.forward(model, objective.collate([row], [0])).losses[0]
        for part in (slice(0, 9), slice(9, 24)):
            alone = {"input_ids": ids[part], "segments": np.zeros(len(ids[part]), np.int32)}
            expected = objective.forward(model, objective.collate([alone], [0])).losses[0]
            torch.testing.assert_close(packed[part], expected)


def test_only_the_prompt_learns() -> None:
    model = tiny.model()
    start, method = stages.weights(model), DAPPrompt(n_tokens=N)
    learnt(method, model)
    assert stages.weights(model).keys() == start.keys()
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    words = model.get_input_embeddings().weight[:N]
    assert all(not torch.allclose(vectors, words, atol=1e-3) for vectors in method._prompts.values())
    assert not torch.equal(*method._prompts.values())


def test_where_a_prompt_begins() -> None:
    model = tiny.model()
    for options in ({}, {"n_tokens": 3}, {"initialise": "uniform"}):
        method = DAPPrompt(**options)
        at = stages.stage(model, 1)
        stages.hook(method, "attach", at)
        vectors = detach(model, "dap_prompt").vectors
        assert len(vectors) == options.get("n_tokens", 100)
        if "initialise" in options:
            assert -0.5 <= vectors.min() < -0.4
            assert 0.4 < vectors.max() <= 0.5
        else:
            assert torch.equal(vectors, model.get_input_embeddings().weight[: len(vectors)])
    small = tiny.model(vocab_size=384)
    small.resize_token_embeddings(30)
    assert len(DAPPrompt()._new(small)) == 100, "more tokens than words: the words again"


@pytest.mark.parametrize(("rate", "expected"), [(0.3, 0.3), (None, 0.01)])
def test_the_learning_rate_of_the_prompt_follows_the_schedule(rate: float | None, expected: float, tmp_path) -> None:
    method, at = DAPPrompt(n_tokens=N, learning_rate=rate), stages.stage(tiny.model(), 1)
    protection = Protection([method], at)
    data = protection.begin()
    arguments = {
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "lr_scheduler_type": "linear",
        "logging_steps": 1,
        "save_strategy": "no",
    }
    trainer = StageTrainer(
        protection=protection,
        loader=BlockLoader(data, at.objective, 4, at.steps),
        args=training_arguments(arguments, tmp_path, 0, at.steps),
    )
    trainer.train()
    rates = [line["learning_rate"] for line in trainer.state.log_history if "learning_rate" in line]
    assert rates == pytest.approx([expected * (1 - step / 4) for step in range(4)])
    stages.end([method], at)


def test_a_domain_is_read_with_its_own_prompt_and_other_text_with_none() -> None:
    method, model = DAPPrompt(n_tokens=N), tiny.model()
    at = learnt(method, model)
    plain = at.objective.hidden(model, {"input_ids": IDS})
    for name in ("d1", "d2", "d3", None):
        tested = method.test_model(copy.deepcopy(model), reading(at, name))
        found = at.objective.hidden(tested, {"input_ids": IDS})
        expected = by_hand(model, method._prompts[name], IDS) if name in ("d1", "d2") else plain
        torch.testing.assert_close(found, expected)


def test_end_tasks_in_the_papers_way_and_in_the_released_way() -> None:
    model, method = tiny.model(), DAPPrompt(n_tokens=N)
    at = learnt(method, model)
    for freeze in (False, True):
        other = DAPPrompt(n_tokens=N, freeze_base_at_end_task=freeze)
        other.load_memory(method.memory())
        plain = classifier(model)
        tested = other.test_model(copy.deepcopy(plain), reading(at, "d1"))
        logits = tested(input_ids=IDS).logits
        assert not torch.allclose(logits, plain(input_ids=IDS).logits, atol=1e-5)
        logits.square().sum().backward()
        moved = {name for name, p in tested.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        head = {name for name in moved if name.startswith("classifier.")}
        assert len(head) == 4
        assert (moved == head) is freeze
        assert ("everlearn_dap_prompt.vectors" in moved) is not freeze


@pytest.mark.parametrize("architecture", ["roberta", "bert", "gpt2"])
def test_texts_of_end_tasks_leave_room_for_the_prompt(architecture: str) -> None:
    """29 positions and 7 for the prompt: 22 are left, and batches are padded to multiples of 8."""
    size = {"n_positions": 29} if architecture == "gpt2" else {"max_position_embeddings": 29}
    size = {"max_position_embeddings": 31} if architecture == "roberta" else size
    model, lengths = tiny.model(architecture, **size), []

    def put_back(model: nn.Module) -> nn.Module:
        prompt(model).attach(model, "dap_prompt")
        model.register_forward_pre_hook(
            lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        return model

    task = EndTask(name="task", domain="d1", train="-", test="-", epochs=1, batch_size=4)
    data = LabelledSet(["axes " * 100, "axes"] * 4, None, np.arange(8) % 2, ["a", "b"])
    fine_tune(model, tiny.tokenizer(), task, data, data, seed=0, prepare=put_back)
    assert max(lengths) == 16


def test_memory_round_trip() -> None:
    method, model = DAPPrompt(n_tokens=N), tiny.model()
    at = learnt(method, model)
    again = DAPPrompt(n_tokens=N)
    again.load_memory(method.memory())
    assert again.memory().facts == method.memory().facts
    assert all(torch.equal(value, again._prompts[name]) for name, value in method._prompts.items())
    assert not DAPPrompt().memory()
    config = AutoConfig.for_model(**(model.config.to_dict() | {"hidden_size": 16}))
    with pytest.raises(MethodError, match="vectors of size 32, but this model's embeddings have 16"):
        again.test_model(AutoModelForSequenceClassification.from_config(config), reading(at, "d1"))


def test_what_does_not_fit_is_refused() -> None:
    model = tiny.model()
    DAPPrompt(n_tokens=104).check(stages.setting(model, []))
    with pytest.raises(MethodError, match=r"'n_tokens': 105 prompt tokens and a text of 24.*128 positions"):
        DAPPrompt(n_tokens=105).check(stages.setting(model, []))
    with pytest.raises(MethodError, match=r"105 prompt tokens and a text of 24 do not fit.*`data.block_size`\."):
        stages.hook(DAPPrompt(n_tokens=105), "attach", stages.stage(model, 1))
    stages.hook(DAPPrompt(n_tokens=104), "attach", stages.stage(model, 1))
    assert attached(model, "dap_prompt").taken_positions == 104
    method = DAPPrompt()
    isolated = make_objective("masked", tiny.model(), tiny.tokenizer(), isolate=True)
    setting = stages.setting(tiny.model(), [method])
    with pytest.raises(MethodError, match=r"influence each other\. Set `data.isolate_documents: false`"):
        method.check(replace(setting, objective=isolated))
    with pytest.raises(MethodError, match="does not work with objective 'text-to-text'"):
        method.check(stages.setting(tiny.model("t5"), [method], "text-to-text"))


LENGTH = 3


def learnt_prompts(method: ProgressivePrompts, model: Any, objective: str, domains: int = 3) -> Any:
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
    method, model = ProgressivePrompts(n_tokens=LENGTH), tiny.model("t5")
    at = learnt_prompts(method, model, "text-to-text")
    prompts = list(method._prompts.values())
    assert [len(prompt) for prompt in prompts] == [LENGTH] * 3
    tested = method.test_model(copy.deepcopy(model).double(), reading(at, None))
    batch = next(at.batches(3))
    found = at.objective.forward(tested, batch).losses
    mask = F.pad(batch["attention_mask"], (3 * LENGTH, 0), value=1)
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
    method, model = ProgressivePrompts(n_tokens=LENGTH), tiny.model(architecture)
    at = learnt_prompts(method, model, objective)
    ids = torch.arange(5, 53).view(2, 24)
    tested = method.test_model(copy.deepcopy(model).double(), reading(at, None))
    found = tested.base_model(input_ids=ids).last_hidden_state
    embedded = joined(model, list(method._prompts.values()), ids)
    expected = model.double().base_model(inputs_embeds=embedded).last_hidden_state[:, 3 * LENGTH :]
    torch.testing.assert_close(found, expected)


def test_only_the_newest_prompt_learns() -> None:
    method, model = ProgressivePrompts(n_tokens=LENGTH), tiny.model("t5")
    start = stages.weights(model)
    learnt_prompts(method, model, "text-to-text", 2)
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    before = {name: value.clone() for name, value in method._prompts.items()}
    at = stages.stage(model, 3, "text-to-text")
    held: list[Tensor] = []
    stages.learn(
        [method],
        at,
        weight_decay=0.1,
        each=lambda *_: held.append(attached(model, method.name).prompt()[LENGTH:].detach().clone()),
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
    method, model = ProgressivePrompts(n_tokens=LENGTH, bottleneck=8), tiny.model("t5")
    at = stages.stage(model, 1, "text-to-text", steps=2)
    protection = Protection([method], at)
    protection.begin()
    added: ProgressivePrompt = attached(model, method.name)
    first, second = added.mlp[0], added.mlp[2]
    inner = torch.relu(added.vectors @ first.weight.T + first.bias)
    expected = added.vectors + inner @ second.weight.T + second.bias
    torch.testing.assert_close(added.prompt(), expected)
    trained = sum(p.numel() for p in added.parameters() if p.requires_grad)
    assert method.cost(model).parameters == trained == LENGTH * 32 + 2 * 32 * 8 + 8 + 32
    protection.end()
    assert method.memory().tensors.keys() == {"d1"}
    torch.testing.assert_close(method._prompts["d1"], expected.detach())


def test_at_test_all_prompts_or_those_up_to_the_domains_own() -> None:
    method, model = ProgressivePrompts(n_tokens=LENGTH), tiny.model("t5")
    at = learnt_prompts(method, model, "text-to-text")
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
    method, model = ProgressivePrompts(n_tokens=LENGTH), tiny.model("t5")
    at = learnt_prompts(method, model, "text-to-text")
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
    model, method = tiny.model("gpt2", n_positions=24 + 2 * LENGTH), ProgressivePrompts(n_tokens=LENGTH)
    learnt_prompts(method, model, "causal", 2)
    with pytest.raises(MethodError, match=r"9 prompt tokens and a text of 24 do not fit the model's 30 positions"):
        learnt_prompts(method, model, "causal", 3)
    first, second = ProgressivePrompts(n_tokens=LENGTH), build("dap_adapter")
    with pytest.raises(MethodError, match="'progressive_prompts' freezes all parameters except its own"):
        first.check(stages.setting(model, [first, second], "causal"))
