"""MoCL and K-Adapter: modules of each domain beside a frozen model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hard_attention_checks import classifier, reading
from torch import Tensor, nn
from transformers import RobertaConfig, RobertaForMaskedLM

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.composition.k_adapter import KAdapter
from everlearn.methods.composition.knowledge import Chain
from everlearn.methods.composition.mocl import MoCL
from everlearn.methods.engine.attachment import attached
from everlearn.model.objectives import make_objective
from everlearn.model.packed_rows import so_far
from everlearn.predictors.decoding import Ending, continuation, decode

# -- MoCL: weights from keys, modules mixed by them, a loss that draws the key, and earlier modules that never move ----


N, R, ALPHA = 3, 2, 6.0
LOW_RANK: dict[str, Any] = {"r": R, "lora_alpha": ALPHA, "lora_dropout": 0.0}


def method(**options: Any) -> MoCL:
    own = LOW_RANK if options.get("module") == "lora" else {"n_tokens": N}
    return MoCL(**(own | options))


def learnt(mocl: MoCL, model: nn.Module, objective: str, domains: int = 3) -> Any:
    for index in range(1, domains + 1):
        at = stages.stage(model, index, objective, steps=2)
        stages.learn([mocl], at, lr=0.1)
    return at


def weights(mocl: MoCL, queries: Tensor) -> Tensor:
    """softmax(8 cos(q, k_i)), written out, in float64: queries [N, E] to [N, t]."""
    rows = []
    for query in queries.double():
        scores = []
        for one in mocl._learnt.values():
            key = one["key"].double()
            scores.append(8 * (query * key).sum() / (query.square().sum().sqrt() * key.square().sum().sqrt()))
        exponents = torch.stack(scores).exp()
        rows.append(exponents / exponents.sum())
    return torch.stack(rows)


def encoded(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """The mean of the plain encoder's last hidden states over the tokens of each row, [B, E]."""
    found = []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        hidden = model.encoder(input_ids=ids[mask > 0][None]).last_hidden_state[0]
        found.append(hidden.sum(0) / len(hidden))
    return torch.stack(found)


def nats(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")


@torch.no_grad()
def test_low_rank_blocks_are_mixed_by_the_texts_weights() -> None:
    """Row by row against a plain model whose weights have s Σ_i w_i B_i A_i added, in float64."""
    mocl, model = method(module="lora"), tiny.model("t5")
    with torch.enable_grad():
        at = learnt(mocl, model, "text-to-text")
    model = model.double()
    batch = next(at.batches(3))
    tested = mocl.test_model(copy.deepcopy(model), reading(at, None))
    found = at.objective.forward(tested, batch).losses
    expected = []
    paths = [path for path, _ in model.named_modules() if path.endswith((".q", ".v"))]
    for row, mixed in enumerate(weights(mocl, encoded(model, batch))):
        merged = copy.deepcopy(model)
        for number, path in enumerate(paths):
            for weight, one in zip(mixed, mocl._learnt.values(), strict=True):
                a, b = (one[f"layers.{number}.lora_{which}.own.weight"].double() for which in "AB")
                merged.get_submodule(path).weight += weight * ALPHA / R * b @ a
        inputs = {name: value[row : row + 1] for name, value in batch.items()}
        expected.append(nats(merged(**at.objective.inputs(inputs)).logits, inputs["labels"]))
    torch.testing.assert_close(found.double(), torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert len(paths) == 2 * 2 + 2 * 4
    plain = nats(model(**at.objective.inputs(batch)).logits, batch["labels"])
    assert not torch.allclose(found.double(), plain, atol=1e-2)


def attend(attention: Any, x: Tensor, source: Tensor, prefix: Tensor, seen: Tensor) -> Tensor:
    """T5's attention written out, with a prefix's keys and values [2, n, H] before those of `source`.

    The prefix stands at positions 0 to n − 1 and the text behind it; `seen` [S, n + T] says what a token may see.
    """
    n, heads = prefix.shape[1], attention.n_heads
    k = torch.cat([prefix[0], attention.k(source)])
    v = torch.cat([prefix[1], attention.v(source)])
    q, k, v = (each.unflatten(-1, (heads, -1)).transpose(0, 1) for each in (attention.q(x), k, v))
    scores = q @ k.transpose(1, 2)
    if attention.has_relative_attention_bias:
        attend.bias = attention.compute_bias(n + len(x), k.shape[1])[0, :, n:]
    if source is x:
        scores = scores + attend.bias
    scores = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return attention.o((scores @ v).transpose(0, 1).flatten(1))


def stack(module: Any, ids: Tensor, prefixes: list[Tensor], memory: Tensor | None) -> Tensor:
    """A T5 stack on one row without padding: every attention of layer l reads the prefix of layer l."""
    x, n = module.embed_tokens(ids), prefixes[0].shape[1]
    seen = torch.ones(len(ids), n + len(ids), dtype=torch.bool)
    if memory is not None:
        seen[:, n:] = seen[:, n:].tril()
    for block, prefix in zip(module.block, prefixes, strict=True):
        own, *cross, forward = block.layer
        normed = own.layer_norm(x)
        x = x + attend(own.SelfAttention, normed, normed, prefix, seen)
        for layer in cross:
            every = torch.ones(len(ids), n + len(memory), dtype=torch.bool)
            x = x + attend(layer.EncDecAttention, layer.layer_norm(x), memory, prefix, every)
        x = forward(x)
    return module.final_layer_norm(x)


@torch.no_grad()
def test_prefixes_are_mixed_by_the_texts_weights() -> None:
    """Encoder, decoder and cross-attention against attention written out, in float64."""
    mocl, model = method(), tiny.model("t5")
    with torch.enable_grad():
        at = learnt(mocl, model, "text-to-text")
    model = model.double()
    batch = next(at.batches(3))
    tested = mocl.test_model(copy.deepcopy(model), reading(at, None))
    found = at.objective.forward(tested, batch).losses
    for row, mixed in enumerate(weights(mocl, encoded(model, batch))):
        prefixes = [
            sum(w * one[f"layers.{layer}.prefix"].double() for w, one in zip(mixed, mocl._learnt.values(), strict=True))
            for layer in range(2)
        ]
        ids = batch["input_ids"][row][batch["attention_mask"][row] > 0]
        memory = stack(model.encoder, ids, prefixes, None)
        hidden = stack(model.decoder, batch["decoder_input_ids"][row], prefixes, memory)
        logits = model.lm_head(hidden * model.config.d_model**-0.5)
        expected = F.cross_entropy(logits, batch["labels"][row], reduction="none")
        torch.testing.assert_close(found[row].double(), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_decoders_token_is_weighed_by_what_its_document_says_up_to_it() -> None:
    mocl, model = MoCL(**LOW_RANK), tiny.model("llama")
    with torch.enable_grad():
        at = learnt(mocl, model, "causal")
    tested = mocl.test_model(copy.deepcopy(model).double(), reading(at, None))
    batch = next(at.batches(2))
    at.objective.forward(tested, batch)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    hidden = model.double().model(**inputs, use_cache=False).last_hidden_state
    for row, positions in enumerate(batch["position_ids"]):
        for token, position in enumerate(positions):
            query = hidden[row, token - position : token + 1].mean(0)
            expected = weights(mocl, query[None])[0]
            torch.testing.assert_close(
                attached(tested, "mocl").weights[row, token].double(), expected, atol=1e-5, rtol=1e-5
            )


@torch.no_grad()
def test_a_token_knows_nothing_of_what_follows_it_nor_of_other_documents() -> None:
    mocl, model = MoCL(**LOW_RANK), tiny.model("gpt2")
    with torch.enable_grad():
        at = learnt(mocl, model, "causal")
    tested = mocl.test_model(copy.deepcopy(model), reading(at, None))
    batch = next(at.batches(4))
    losses = at.objective.forward(tested, batch).losses
    other = batch | {"input_ids": batch["input_ids"].clone()}
    other["input_ids"][:, 12:] = 7
    assert torch.equal(at.objective.forward(tested, other).losses[:, :11], losses[:, :11])
    objective = make_objective("causal", model, tiny.tokenizer())
    block = stages.blocks(1, 5, "causal")[0]
    packed = objective.forward(tested, objective.collate([block], [0])).losses[0]
    second = int((block["segments"] == 0).sum())
    alone = {name: value[second:] for name, value in block.items()}
    apart = objective.forward(tested, objective.collate([alone], [0])).losses[0]
    torch.testing.assert_close(packed[second:], apart, atol=1e-5, rtol=1e-5)


def test_only_the_newest_module_and_key_learn_and_the_key_is_drawn_to_its_queries() -> None:
    mocl, model = method(match=2.0), tiny.model("t5")
    start = stages.weights(model)
    learnt(mocl, model, "text-to-text", 2)
    before = {f"{d}/{n}": v.clone() for d, one in mocl._learnt.items() for n, v in one.items()}
    at = stages.stage(model, 3, "text-to-text")
    seen: list[tuple[Tensor, Tensor]] = []

    def look(protection: Any, batch: dict[str, Tensor]) -> None:
        mixture = attached(model, "mocl")
        cosines = F.cosine_similarity(encoded_now(batch), mixture.key[None])
        seen.append((2 * (1 - cosines.mean()), mixture.keys[:-1].detach().clone()))
        assert all(p.grad is None for p in mixture.parameters() if not p.requires_grad)

    plain = copy.deepcopy(model)

    def encoded_now(batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            return encoded(plain, batch)

    parts = stages.learn([mocl], at, lr=0.1, weight_decay=0.1, each=look)
    for part, (expected, earlier) in zip(parts, seen, strict=True):
        torch.testing.assert_close(part["mocl/match"], expected.detach(), atol=1e-5, rtol=1e-5)
        assert torch.equal(earlier, torch.stack([before["d1/key"], before["d2/key"]]))
    assert parts[-1]["mocl/match"] < parts[0]["mocl/match"]
    memory = mocl.memory().tensors
    assert all(torch.equal(memory[name], value) for name, value in before.items())
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())


@pytest.mark.parametrize("module", ["prefix", "lora"])
def test_answers_are_written_with_the_weights_of_the_prompt(module: str) -> None:
    """Greedy decoding with a cache gives what reading everything again gives."""
    mocl, model = method(module=module), tiny.model("t5")
    at = learnt(mocl, model, "text-to-text", 2)
    tested = mocl.test_model(copy.deepcopy(model), reading(at, None)).eval()
    batch = next(at.batches(3))
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        steps = continuation(tested, inputs)
        ids, likely = torch.full((3, 1), 1), next(steps)
        for _ in range(4):
            expected = tested(**inputs, decoder_input_ids=ids, use_cache=False).logits[:, -1].double().log_softmax(-1)
            steps = continuation(tested, inputs)
            likely = next(steps)
            for token in ids[:, 1:].T:
                likely = steps.send(token)
            torch.testing.assert_close(likely, expected, atol=1e-4, rtol=1e-4)
            ids = torch.cat([ids, likely.argmax(-1, keepdim=True)], 1)
        written = decode(continuation(tested, inputs), Ending(4))
    assert written == ids[:, 1:].tolist()


def test_at_test_all_modules_or_those_up_to_the_domains_own() -> None:
    mocl, model = method(module="lora"), tiny.model("roberta")
    at = learnt(mocl, model, "masked")
    own = build({"name": "mocl_by_domain", "module": "lora", "r": R, "lora_alpha": ALPHA})
    own.load_memory(mocl.memory())
    assert (mocl.needs.domain_id_test, own.needs.domain_id_test) == (False, True)
    for domain, known in (("d1", 1), ("d2", 2), ("d4", 0), (None, 0)):
        for asked, count in ((mocl, 3), (own, known)):
            tested = asked.test_model(copy.deepcopy(model), reading(at, domain))
            assert hasattr(tested, "everlearn_mocl") is (count > 0)
            if count:
                expected = torch.stack([one["key"] for one in list(mocl._learnt.values())[:count]])
                assert torch.equal(attached(tested, "mocl").keys, expected)
    frozen = method(module="lora", freeze_base_at_end_task=True)
    frozen.load_memory(mocl.memory())
    tested = frozen.test_model(classifier(model), reading(at, "d1"))
    assert {name.split(".")[0] for name, p in tested.named_parameters() if p.requires_grad} == {"classifier"}


def test_what_came_before_is_gathered_document_by_document() -> None:
    values = torch.randn(2, 11, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    document = torch.tensor([[0] * 4 + [1] * 7, [0] + [1] * 2 + [2] * 8])
    for combine, whole in ((torch.add, lambda part: part.sum(0)), (torch.maximum, lambda part: part.amax(0))):
        found = so_far(values, document, combine)
        for row in range(2):
            for token in range(11):
                first = int((document[row] == document[row, token]).nonzero()[0])
                torch.testing.assert_close(found[row, token], whole(values[row, first : token + 1]))


def test_what_does_not_fit_is_refused() -> None:
    gpt2, roberta = tiny.model("gpt2"), tiny.model("roberta")
    with pytest.raises(MethodError, match=r"needs an encoder.*GPT2LMHeadModel.*`module: lora` of"):
        method(module="prefix").check(stages.setting(gpt2, [], "causal"))
    with pytest.raises(MethodError, match=r"103 positions|'n_tokens': 120 prompt tokens and a text of 24"):
        method(n_tokens=120).check(stages.setting(roberta, []))
    isolated = make_objective("masked", roberta, tiny.tokenizer(), isolate=True)
    setting = stages.setting(roberta, [])
    with pytest.raises(MethodError, match=r"by the complete row.*`data.isolate_documents: false`\."):
        method().check(type(setting)(**(vars(setting) | {"objective": isolated})))
    mocl = method(module="lora")
    at = learnt(mocl, roberta, "masked", 1)
    other = method(module="lora", r=3)
    other.load_memory(mocl.memory())
    with pytest.raises(MethodError, match=r"'layers.0.lora_A.own.weight' with shape \(2, 32\), which does not fit"):
        other.test_model(roberta, reading(at, None))
    assert MoCL(**LOW_RANK).cost(gpt2).parameters == 32 + 2 * R * (32 + 96)


# -- K-Adapter: sizes, the chain against a slow reference, who sees whom, and what stays as it was ---------------------


IDS = torch.arange(5, 53).view(2, 24)
DEPTHS = [0, 1, 2]


def learnt_of_k_adapter(
    method: KAdapter, model: Any, domains: int = 1, objective: str = "masked", **options: Any
) -> list[Any]:
    """A stream in a plain loop; then every chain gets values that show."""
    done = [stages.stage(model, index, objective) for index in range(1, domains + 1)]
    for at in done:
        stages.learn([method], at, **options)
    generator = torch.Generator().manual_seed(5)
    for kept in method._learnt.values():
        for value in kept.values():
            value.add_(torch.randn(value.shape, generator=generator) * 0.2)
    return done


def read_with(method: KAdapter, model: Any, at: Any, domain: str | None = "d1") -> Any:
    """The model as the method tests it on a text of a domain."""
    return method.test_model(copy.deepcopy(model).eval(), reading(at, domain))


def test_it_is_as_large_as_published() -> None:
    """RoBERTa-large, one source: 47.25 million numbers, of which 42.53 in transformer layers."""
    config = RobertaConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    with torch.device("meta"):
        model = RobertaForMaskedLM(config)
        method = KAdapter()
        chain = method._chain(model)
    assert method._depths(model) == [0, 11, 22]
    assert round(sum(p.numel() for p in chain.parameters()) / 1e6, 2) == 47.25
    assert round(method.cost(model).parameters / 1e6, 2) == 47.25
    inner = sum(p.numel() for adapter in chain.adapters for p in adapter.layers.parameters())  # type: ignore[union-attr]
    assert round(inner / 1e6, 2) == 42.53
    first: Any = chain.adapters[0]
    assert first.down.weight.shape == (768, 1024)
    assert (first.layers[0].heads, first.layers[0].inner.out_features) == (12, 3072)


def norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def by_hand(kept: dict[str, Tensor], states: list[Tensor], sees: Tensor, heads: int = 3) -> Tensor:
    """C_K of one chain in float64, token by token of the attention, from H at its depths."""
    w = {name: value.double() for name, value in kept.items()}
    carried = torch.zeros_like(states[0])
    for number, state in enumerate(states):
        x = state + carried
        at = f"adapters.{number}."

        def linear(name: str, x: Tensor, at: str = at) -> Tensor:
            return x @ w[f"{at}{name}.weight"].T + w[f"{at}{name}.bias"]

        t = linear("down", x)
        for layer in ("layers.0.", "layers.1."):
            q, k, v = (linear(f"{layer}{part}", t) for part in ("query", "key", "value"))
            size = t.shape[-1] // heads
            context = torch.zeros_like(t)
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                for i in range(t.shape[1]):
                    scores = (q[:, i, None, part] * k[:, :, part]).sum(-1) / size**0.5
                    weights = (scores.exp() * sees[i]) / (scores.exp() * sees[i]).sum(1, keepdim=True)
                    context[:, i, part] = (weights[:, :, None] * v[:, :, part]).sum(1)
            t = norm(t + linear(f"{layer}output", context), w, f"{at}{layer}attended")
            inner = linear(f"{layer}inner", t)
            inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
            t = norm(t + linear(f"{layer}outer", inner), w, f"{at}{layer}passed")
        carried = x + linear("up", t)
    return carried


@torch.no_grad()
def hidden_states(model: Any) -> list[Tensor]:
    """H[0] (embeddings), H[1], … of the plain model in float64."""
    plain = copy.deepcopy(model).double()
    return list(plain.base_model(IDS, output_hidden_states=True).hidden_states)


@pytest.mark.parametrize("combine", ["sum", "gate"])
def test_a_language_model_reads_what_the_adapters_add(combine: Any) -> None:
    method, model = KAdapter(depths=DEPTHS, combine=combine), tiny.model()
    at = learnt_of_k_adapter(method, model, 2)[-1]
    states = hidden_states(model)
    everybody = torch.ones(24, 24, dtype=torch.float64)
    expected = states[2]
    for domain in ("d1", "d2"):
        kept = method._learnt[domain]
        added = by_hand(kept, states, everybody) - sum(states)
        if combine == "gate":
            w, b = (kept[f"gate.{part}"].double() for part in ("weight", "bias"))
            added = added / (1 + torch.exp(-(states[2] @ w.T + b)))
        with torch.no_grad():
            found = at.objective.hidden(read_with(method, model, at, domain), {"input_ids": IDS})
        torch.testing.assert_close(found.double(), states[2] + added, rtol=1e-3, atol=1e-4)
        expected = expected + added
    together = KAdapter(depths=DEPTHS, combine=combine, read="all")
    assert not together.needs.domain_id_test
    together.load_memory(method.memory())
    with torch.no_grad():
        found = at.objective.hidden(read_with(together, model, at, None), {"input_ids": IDS})
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4)


def test_a_classifier_reads_hidden_state_and_chains_side_by_side() -> None:
    method, model = KAdapter(depths=[0, 2], read="all"), tiny.model()
    at = learnt_of_k_adapter(method, model, 2)[-1]
    plain = classifier(model)
    with_chains = read_with(method, plain, at, None)
    fused = attached(with_chains, "k_adapter").fused
    assert fused.weight.shape == (32, 3 * 32)
    with torch.no_grad():  # it begins at the model's own hidden state
        torch.testing.assert_close(with_chains(input_ids=IDS).logits, plain(input_ids=IDS).logits)
        fused.weight.normal_(std=0.1)
        fused.bias.normal_(std=0.1)
        found = with_chains.roberta(input_ids=IDS).last_hidden_state.double()
        states = hidden_states(model)
        every = torch.ones(24, 24, dtype=torch.float64)
        chains = [by_hand(method._learnt[domain], [states[0], states[2]], every) for domain in ("d1", "d2")]
        expected = torch.cat([states[2], *chains], -1) @ fused.weight.double().T + fused.bias.double()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_an_adapter_begins_near_the_identity() -> None:
    model = tiny.model()
    at = stages.stage(model)
    batch = next(at.batches(8))
    with torch.no_grad():
        before = at.objective.per_sample_loss(model, batch)
        stages.begin([KAdapter(depths=DEPTHS)], at)
        chain: Chain = attached(model, "k_adapter").chains[0]
        spread = torch.cat([w.flatten() for a in chain.adapters for w in (a.down.weight, a.up.weight)]).std()  # type: ignore[union-attr]
        assert spread == pytest.approx(2e-4, rel=0.05)
        after = at.objective.per_sample_loss(model, batch)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("architecture", ["roberta", "t5"])
def test_padding_is_not_attended_to(architecture: str) -> None:
    """The released code attends to it."""
    method, model = KAdapter(depths=DEPTHS), tiny.model(architecture)
    (at,) = learnt_of_k_adapter(method, model, objective=tiny.objective_of(architecture))
    reader = read_with(method, model, at)
    reader = reader.encoder if architecture == "t5" else reader.roberta
    padded, mask = torch.full((2, 30), 1), torch.zeros(2, 30, dtype=torch.long)
    padded[:, :24], mask[:, :24] = IDS, 1
    with torch.no_grad():
        short = reader(input_ids=IDS).last_hidden_state
        long = reader(input_ids=padded, attention_mask=mask).last_hidden_state[:, :24]
    torch.testing.assert_close(long, short, rtol=1e-4, atol=1e-4)


def test_a_token_sees_its_own_document_up_to_itself() -> None:
    method, model = KAdapter(depths=DEPTHS), tiny.model("llama")
    (at,) = learnt_of_k_adapter(method, model, objective="causal")
    reader = read_with(method, model, at)
    positions = torch.tensor([[*range(10), *range(14)]] * 2)

    @torch.no_grad()
    def hidden(ids: Tensor, **more: Tensor) -> Tensor:
        return at.objective.hidden(reader, {"input_ids": ids, **more})

    packed = hidden(IDS, position_ids=positions)
    torch.testing.assert_close(packed[:, :10], hidden(IDS[:, :10]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(packed[:, 10:], hidden(IDS[:, 10:]), rtol=1e-4, atol=1e-4)
    other = IDS.clone()
    other[:, 20] = 300
    changed = (hidden(other, position_ids=positions) - packed).abs().amax(-1)
    assert changed[:, :20].max() < 1e-5
    assert changed[:, 20:].min() > 1e-4


def test_nothing_of_earlier_domains_changes() -> None:
    method, model = KAdapter(), tiny.model()
    start = stages.weights(model)
    (first,) = learnt_of_k_adapter(method, model)
    with torch.no_grad():
        read = first.objective.hidden(read_with(method, model, first), {"input_ids": IDS})
    before = copy.deepcopy(method._learnt["d1"])
    second = stages.stage(model, 2)
    stages.learn([method], second)
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in method._learnt["d1"].items())
    with torch.no_grad():  # chains have dropout of their own, but not at test
        assert torch.equal(second.objective.hidden(read_with(method, model, second), {"input_ids": IDS}), read)
        plain = second.objective.hidden(model, {"input_ids": IDS})
        assert torch.equal(second.objective.hidden(read_with(method, model, second, None), {"input_ids": IDS}), plain)
    assert read_with(method, model, second, "d3").state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ("options", "base", "chains"),
    [
        ({}, True, True),
        ({"freeze_adapters_at_end_task": True}, True, False),
        ({"freeze_base_at_end_task": True}, False, True),
    ],
)
def test_what_an_end_task_moves(options: dict[str, bool], base: bool, chains: bool) -> None:
    method, model = KAdapter(**options), tiny.model()
    (at,) = learnt_of_k_adapter(method, model)
    tuned = read_with(method, classifier(model), at).train()
    # Behind a random projection: at [I 0] the chains get no gradient in the first step.
    nn.init.normal_(attached(tuned, "k_adapter").fused.weight, std=0.1)
    tuned(input_ids=IDS).logits.square().sum().backward()
    moved = {name for name, p in tuned.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert {"everlearn_k_adapter.fused.weight", "classifier.out_proj.weight"} <= moved
    assert any(name.startswith("roberta.") for name in moved) is base
    assert any(name.startswith("everlearn_k_adapter.chains.") for name in moved) is chains


def test_frozen_chains_have_their_dropout_while_an_end_task_is_fine_tuned() -> None:
    """As in the released code, which freezes the adapters and leaves them in training mode."""
    model = tiny.model()
    found = []
    for dropout in (0.1, 0.0):
        method = KAdapter(freeze_adapters_at_end_task=True, adapter_dropout=dropout)
        (at,) = learnt_of_k_adapter(method, model)
        tuned = read_with(method, classifier(model), at)
        nn.init.normal_(attached(tuned, "k_adapter").fused.weight, std=0.1)
        with torch.no_grad():
            for mode in (True, False):  # the model itself has no dropout
                first, second = (tuned.train(mode)(input_ids=IDS).logits for _ in range(2))
                found.append(torch.equal(first, second))
    assert found == [False, True, True, True]


def test_depths_that_are_not_there_are_refused() -> None:
    for depths in ([0, 3], [1, 0], [-1], [0, 0]):
        method = KAdapter(depths=depths)
        with pytest.raises(MethodError, match=r"'depths': must be increasing numbers from 0 to the model's 2"):
            method.check(stages.setting(tiny.model(), [method]))
    with pytest.raises(MethodError, match="option 'depths'"):
        KAdapter(depths=[])
