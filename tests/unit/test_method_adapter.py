"""Adapters: the equation against a slow reference, the frozen base, and which adapter reads a text."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hard_attention_checks import classifier, reading
from torch import Tensor, nn

import stages
import tiny
from everlearn.data import PackedBlocks
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.adapters.adapter import Adapter
from everlearn.methods.adapters.bottleneck import bottlenecks, feed_forward_outputs
from everlearn.methods.adapters.inc_lora import IncLoRA
from everlearn.methods.engine.attachment import attached
from everlearn.predictors import Checkpoint
from everlearn.predictors.predictor import models_of

IDS = torch.arange(5, 53).view(2, 24)
OWN = "everlearn_dap_adapter.layers."


def vocabulary_of(index: int) -> PackedBlocks:
    """A domain of one of three disjoint vocabularies."""
    rows = stages.blocks(12, index)
    for row in rows:
        row["input_ids"] = (row["input_ids"] % 8 + 10 + 100 * index).astype("int32")
    return PackedBlocks.from_blocks(rows, index, f"d{index}")


def learnt(method: Adapter, model: nn.Module, vocabularies: list[int], steps: int = 8) -> list[Any]:
    """A stream of domains of their own vocabularies."""
    done = []
    for index, vocabulary in enumerate(vocabularies, 1):
        at = stages.stage(model, index, steps=steps)
        at.source = vocabulary_of(vocabulary)
        stages.learn([method], at, lr=0.05)
        done.append(at)
    return done


def randomised(method: Adapter, seed: int = 3) -> None:
    """Give every kept adapter weights of a size that shows."""
    generator = torch.Generator().manual_seed(seed)
    for kept in method._kept.values():
        for value in kept.values():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.3)


def norm(x: Tensor, module: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias


def reference(model: Any, kept: dict[str, Tensor], ids: Tensor) -> Tensor:
    """RoBERTa with adapters by hand in float64: last hidden state, [B, S, H]."""
    model = copy.deepcopy(model).double().eval()
    table = model.roberta.embeddings
    positions = torch.arange(2, 2 + ids.shape[1])
    x = table.word_embeddings.weight[ids] + table.position_embeddings.weight[positions]
    x = norm(x + table.token_type_embeddings.weight[0], table.LayerNorm)
    rows, length, hidden = x.shape
    for number, layer in enumerate(model.roberta.encoder.layer):
        at = layer.attention.self
        q, k, v = (p(x).view(rows, length, 4, hidden // 4).transpose(1, 2) for p in (at.query, at.key, at.value))
        context = (q @ k.transpose(2, 3) / (hidden // 4) ** 0.5).softmax(-1) @ v
        attention = layer.attention.output.dense(context.transpose(1, 2).reshape(rows, length, hidden))
        x = norm(x + attention, layer.attention.output.LayerNorm)
        inner = layer.intermediate.dense(x)
        h = layer.output.dense(inner * 0.5 * (1 + torch.erf(inner / 2**0.5)))
        down, up = (
            [kept[f"{OWN}{number}.{part}.{name}"].double() for name in ("weight", "bias")] for part in ("down", "up")
        )
        bottleneck = (h @ down[0].T + down[1]).clamp(min=0)
        x = norm(x + h + bottleneck @ up[0].T + up[1], layer.output.LayerNorm)
    return x


def test_the_forward_pass_is_the_equation() -> None:
    method, model = Adapter(reduction_factor=4), tiny.model()
    (at,) = learnt(method, model, [0], steps=1)
    randomised(method)
    tested = method.test_model(copy.deepcopy(model), reading(at, "d1"))
    found = at.objective.hidden(tested, {"input_ids": IDS})
    expected = reference(model, method._kept["d1"], IDS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(at.objective.hidden(model, {"input_ids": IDS}).double(), expected, atol=1e-2)


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "gpt2", "llama", "gemma2", "t5"])
def test_it_starts_as_the_base_model_and_is_of_the_declared_size(architecture: str) -> None:
    model = tiny.model(architecture)
    at = stages.stage(model, 1, tiny.objective_of(architecture))
    batch = next(at.batches(4))
    with torch.no_grad():
        before = at.objective.per_sample_loss(model, batch)
    method = Adapter()
    stages.begin([method], at)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    layers = len(feed_forward_outputs(model))
    assert len(trained) == 4 * layers == 4 * len(attached(model, "dap_adapter").layers)
    assert sum(p.numel() for p in trained.values()) == layers * (2 * 32 * 2 + 2 + 32) == method.cost(model).parameters
    with torch.no_grad():
        assert torch.equal(at.objective.per_sample_loss(model, batch), before)
        for value in trained.values():
            value.normal_()
        assert not torch.equal(at.objective.per_sample_loss(model, batch), before)


def test_the_bottleneck_has_a_feature_at_least() -> None:
    layers: Any = bottlenecks(tiny.model(), 1000, "gelu").layers
    assert [layer.down.out_features for layer in layers] == [1, 1]


@pytest.mark.parametrize(
    "options",
    [{}, {"shared": True}, {"initialise": "nearest"}, {"train_head": True}, {"shared": True, "train_head": True}],
)
def test_the_checkpoint_stays_the_base_model(options: dict[str, Any]) -> None:
    model = tiny.model()
    start, method = stages.weights(model), Adapter(samples=4, **options)
    learnt(method, model, [0, 1], steps=3)
    assert stages.weights(model).keys() == start.keys()
    assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())
    assert method.export(model) is model
    moved = next(iter(method._kept.values()))
    assert moved[f"{OWN}0.up.weight"].abs().max() > 0
    head = {name for name in moved if not name.startswith(OWN)}
    untied = {"lm_head.bias", "lm_head.dense.weight", "lm_head.dense.bias"}
    assert head == (
        untied | {"lm_head.layer_norm.weight", "lm_head.layer_norm.bias"} if "train_head" in options else set()
    )
    assert all(not torch.equal(moved[name], start[name]) for name in head)


def test_a_domain_is_read_with_its_own_adapter_and_other_text_with_none() -> None:
    method, model = Adapter(), tiny.model()
    at = learnt(method, model, [0, 1])[-1]
    plain = at.objective.hidden(model, {"input_ids": IDS})
    found = {
        name: at.objective.hidden(method.test_model(copy.deepcopy(model), reading(at, name)), {"input_ids": IDS})
        for name in ("d1", "d2", "d3", None)
    }
    assert torch.equal(found["d3"], plain)
    assert torch.equal(found[None], plain)
    assert not torch.allclose(found["d1"], plain, atol=1e-4)
    assert not torch.allclose(found["d1"], found["d2"], atol=1e-4)


def test_one_adapter_for_the_stream_reads_every_text() -> None:
    method, model = build("ncl_adapter"), tiny.model()
    assert not method.needs.domain_id_test
    at = stages.stage(model, 1)
    assert method.test_model(model, reading(at, "d1")) is model
    assert not hasattr(model, "everlearn_dap_adapter"), "before the first domain there is nothing to read with"
    first, second = learnt(method, model, [0], steps=3)[0], stages.stage(model, 2)
    kept = {name: value.clone() for name, value in method._kept["shared"].items()}
    stages.begin([method], second)
    for name, value in second.model.named_parameters():
        assert name not in kept or torch.equal(value, kept[name]), "the second domain goes on where the first ended"
    stages.end([method], second)
    read = [
        first.objective.hidden(method.test_model(copy.deepcopy(model), reading(first, name)), {"input_ids": IDS})
        for name in ("d1", None)
    ]
    assert torch.equal(*read)


def test_demix_starts_from_the_least_perplexed_neighbour() -> None:
    fresh, model = Adapter(), tiny.model()
    learnt(fresh, model, [0, 1, 2])
    method, kept = build({"name": "demix", "samples": 8}), fresh._kept
    method.load_memory(fresh.memory())
    at = stages.stage(model, 4)
    at.source = vocabulary_of(1)
    losses = {}
    for name in kept:  # the definition: attach, read, average over labels
        tested = method.test_model(copy.deepcopy(model), reading(at, name))
        with torch.no_grad():
            nats = torch.cat([at.objective.forward(tested, batch).losses.flatten() for batch in at.batches(8)])
        losses[name] = nats.mean().exp().item()
    assert min(losses, key=losses.__getitem__) == "d2"
    stages.begin([method], at)
    assert method.memory().facts["nearest"] == {"d4": "d2"}
    for name, value in model.named_parameters():
        assert name not in kept["d2"] or torch.equal(value, kept["d2"][name])


def test_what_memory_knows_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    method, model = build({"name": "demix", "samples": 4}), tiny.model()
    learnt(method, model, [0, 1], steps=2)
    assert method.memory().facts["nearest"] == {"d2": "d1"}, "the first had none, the second no other"
    at = stages.stage(copy.deepcopy(model), 3)
    stages.begin([method], at)
    again = build({"name": "demix", "samples": 4})
    again.load_memory(method.memory())
    monkeypatch.setattr(Adapter, "least_perplexed", lambda *_: pytest.fail("measured again"))
    resumed = stages.stage(model, 3)
    stages.begin([again], resumed)
    assert all(torch.equal(p, dict(at.model.named_parameters())[n]) for n, p in resumed.model.named_parameters())


def nats_by_hand(model: Any, kept: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
    """Nats of each label of RoBERTa with an adapter and its head, in float64, [B, K]."""
    own = {name: value.double() for name, value in {**dict(model.named_parameters()), **kept}.items()}
    x = reference(model, kept, batch["input_ids"]) @ own["lm_head.dense.weight"].T + own["lm_head.dense.bias"]
    x = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    centred = x - x.mean(-1, keepdim=True)
    x = centred / (centred.pow(2).mean(-1, keepdim=True) + model.lm_head.layer_norm.eps).sqrt()
    x = x * own["lm_head.layer_norm.weight"] + own["lm_head.layer_norm.bias"]
    logits = x @ own["roberta.embeddings.word_embeddings.weight"].T + own["lm_head.bias"]
    nats = [
        [-logits[row, place].log_softmax(-1)[label] for place, label in zip(places, labels, strict=True)]
        for row, (places, labels) in enumerate(zip(batch["positions"], batch["labels"], strict=True))
    ]
    return torch.stack([torch.stack(row) for row in nats]).detach()


@pytest.mark.parametrize("options", [{}, {"train_head": True}])
def test_adapter_cl_reads_each_example_with_the_adapter_that_is_least_perplexed_by_it(options: dict[str, Any]) -> None:
    """j*(x) = argmin_j exp(mean nats of x with adapter j), for each row of a mixed batch, in float64 (eq. 6)."""
    method, model = build({"name": "adapter_cl", **options}), tiny.model()
    learnt(method, model, [0, 1, 2])
    before = stages.weights(model)
    at = stages.stage(model, 3)
    rows = [row for mixed in zip(*(vocabulary_of(v).once(0) for v in (2, 0, 1)), strict=True) for row in mixed][:9]
    batch = at.objective.collate(rows, range(9))
    expected = torch.stack([nats_by_hand(model, method._kept[f"d{j}"], batch) for j in (1, 2, 3)])
    chosen = expected.mean(2).exp().argmin(0)
    assert chosen.tolist() == [2, 0, 1] * 3, "the domain of each row, which nobody told"
    plain = Checkpoint(method.test_model(copy.deepcopy(model), reading(at, "d1")), at.objective)
    router = method.test_predictor(plain, reading(at, "d1"))
    with torch.no_grad():
        found = router.label_losses(batch)
    assert router.chosen(batch).tolist() == chosen.tolist()
    torch.testing.assert_close(found.double(), expected[chosen, torch.arange(9)], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    shared = [model.get_parameter("roberta.embeddings.word_embeddings.weight") for model in models_of(router)[:3]]
    assert len({weight.data_ptr() for weight in shared}) == 1, "the frozen weights are there once"


def test_adapter_cl_reads_every_row_with_every_adapter_once() -> None:
    method, model = build("adapter_cl"), tiny.model()
    at = learnt(method, model, [0, 1], steps=1)[-1]
    router, passes = method.test_predictor(Checkpoint(model, at.objective), reading(at, None)), []
    for number, member in enumerate(models_of(router)):
        member.register_forward_hook(lambda *_, number=number: passes.append(number))
    router.label_losses(next(at.batches(4)))
    assert sorted(passes) == [0, 1]


def test_adapter_cl_chooses_by_the_prompt_and_never_by_the_answer() -> None:
    method, model = build("adapter_cl"), tiny.model("gpt2")
    for index in (1, 2, 3):
        at = stages.stage(model, index, "causal", steps=8)
        at.source = vocabulary_of(index - 1)
        stages.learn([method], at, lr=0.05)
    router = method.test_predictor(Checkpoint(model, at.objective), reading(at, None))
    prompts = torch.tensor([[10 + 100 * v + i % 8 for i in range(6)] for v in (2, 0, 1)])
    for answers in (0, 1, 2):
        batch = {
            "input_ids": torch.cat([prompts, torch.full((3, 2), 12 + 100 * answers)], 1),
            "position_ids": torch.arange(8).expand(3, 8),
            "positions": torch.tensor([[5, 6]] * 3),
            "labels": torch.full((3, 2), 12 + 100 * answers),
        }
        assert router.chosen(batch).tolist() == [2, 0, 1]


@pytest.mark.parametrize("options", [{}, {"train_head": True}])
def test_a_classifier_of_adapter_cl_has_the_adapter_of_its_texts(options: dict[str, Any]) -> None:
    method, model = build({"name": "adapter_cl", "samples": 8, **options}), tiny.model()
    learnt(method, model, [0, 1, 2])
    for vocabulary in (0, 1, 2):
        at = stages.stage(model, 3)
        at.source = vocabulary_of(vocabulary)
        tested = method.test_model(classifier(model), reading(at, None))
        own = method._kept[f"d{vocabulary + 1}"]
        found = dict(tested.named_parameters())
        assert all(torch.equal(found[name], value) for name, value in own.items() if name.startswith(OWN))
        alone = Checkpoint(model, at.objective)
        tuned = method.test_predictor(alone, reading(at, None)).fine_tuned(lambda *_: nn.Linear(1, 1))
        assert len(models_of(tuned)) == 1, "one classifier, not one for each adapter"
    with pytest.raises(MethodError, match=r"'adapter_cl', option 'choose'.*predict its prompts.*`choose: domain`"):
        method.check(stages.setting(tiny.model("t5"), [method], "text-to-text"))
    build({"name": "adapter_cl", "choose": "domain"}).check(stages.setting(tiny.model("t5"), [method], "text-to-text"))


def test_end_tasks_in_the_papers_way_and_in_the_released_way() -> None:
    model = tiny.model()
    method = Adapter()
    (at,) = learnt(method, model, [0])
    for freeze in (False, True):
        other = Adapter(freeze_base_at_end_task=freeze)
        other.load_memory(method.memory())
        plain = classifier(model)
        tested = other.test_model(copy.deepcopy(plain), reading(at, "d1"))
        assert not torch.allclose(tested(input_ids=IDS).logits, plain(input_ids=IDS).logits, atol=1e-5)
        tested(input_ids=IDS).logits.square().sum().backward()
        moved = {name for name, p in tested.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        assert {f"{OWN}1.up.weight", "classifier.out_proj.weight"} <= moved
        assert ("roberta.encoder.layer.0.output.dense.weight" in moved) is not freeze
        assert any(name.startswith("roberta.") for name in moved) is not freeze


def test_memory_round_trip() -> None:
    method, model = Adapter(train_head=True), tiny.model()
    at = learnt(method, model, [0, 1], steps=2)[-1]
    again = Adapter(train_head=True)
    again.load_memory(method.memory())
    assert again.memory().facts == method.memory().facts == {"adapters": ["d1", "d2"]}
    losses = [
        at.objective.per_sample_loss(m.test_model(copy.deepcopy(model), reading(at, "d2")), next(at.batches(4)))
        for m in (method, again)
    ]
    assert torch.equal(*losses)
    narrow = Adapter(reduction_factor=2)
    narrow.load_memory(method.memory())
    with pytest.raises(MethodError, match=r"remembers 'everlearn_dap_adapter.*another model or other options"):
        narrow.test_model(copy.deepcopy(model), reading(at, "d2"))


def test_what_does_not_go_together_is_refused() -> None:
    for option, value in (("initialise", "nearest"), ("choose", "perplexity")):
        with pytest.raises(MethodError, match=f"option '{option}'.*shared: true"):
            Adapter(shared=True, **{option: value})
        with pytest.raises(MethodError, match=f"'ncl_adapter', option '{option}': '{value}' chooses among adapters"):
            build({"name": "ncl_adapter", option: value})
    model, method = tiny.model(), Adapter()
    with pytest.raises(MethodError, match="'dap_adapter' does not work on a model with PEFT"):
        method.check(stages.setting(model, [method, IncLoRA()]))
    with pytest.raises(MethodError, match=r"'dap_adapter' freezes all parameters except its own, .* 'dap_prompt'"):
        method.check(stages.setting(model, [method, build("dap_prompt")]))
    method.check(stages.setting(model, [method, build("kd")]))


def test_variants_say_what_they_need() -> None:
    for name in ("dap_adapter", "ncl_adapter", "demix", "adapter_cl"):
        variant = build(name)
        assert isinstance(variant, Adapter)
        assert variant.label == name
        assert variant.needs == Adapter(variant.config).needs
        assert variant.needs.importance_pass == (variant.cost(tiny.model()).passes_per_earlier > 0)
