"""The forms of KD against their equations in float64, and answers from a file against a teacher in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods import build
from everlearn.methods.distillation.cached import CachedAnswers
from everlearn.methods.distillation.comparisons import among_the_batch
from everlearn.methods.distillation.kd import KD
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.rehearsal.replay import Replay
from everlearn.model.objectives import IGNORE

KINDS = [("roberta", "masked"), ("gpt2", "causal"), ("llama", "text-to-text"), ("t5", "text-to-text")]
WRITING = KINDS[1:]


def _moved(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def _double(model: nn.Module) -> nn.Module:
    double = type(model)(model.config).double().eval()
    double.load_state_dict(model.state_dict())
    return double


def _inputs(model: nn.Module, batch: dict[str, Tensor], plain: bool) -> dict[str, Any]:
    names = ("input_ids", "attention_mask", "position_ids", "decoder_input_ids")
    inputs: dict[str, Any] = {key: batch[key] for key in names if key in batch}
    if plain:
        inputs["input_ids"] = batch.get("plain_ids", batch["input_ids"])
    return inputs if model.config.model_type == "roberta" else inputs | {"use_cache": False}


def _logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """At each label, [B, K, V]."""
    logits = model(**_inputs(model, batch, plain=False)).logits
    if "positions" not in batch:
        return logits
    return logits.gather(1, batch["positions"][..., None].expand(-1, -1, logits.shape[-1]))


def _hidden(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Last hidden state of the unmasked text."""
    if model.config.model_type == "t5":
        return model(**_inputs(model, batch, plain=True), output_hidden_states=True).decoder_hidden_states[-1]
    return model.base_model(**_inputs(model, batch, plain=True)).last_hidden_state


def _begun(architecture: str, objective: str, **options: Any) -> tuple[Any, ...]:
    """A protection under way, its batch, and the student that has moved and its teacher, in float64."""
    model = tiny.model(architecture)
    stage = stages.stage(model, 1, objective)
    stage.rows_per_step = stage.batch_size
    protection = Protection([KD(**options)], stage)
    protection.begin()
    teacher = _double(model)
    student = _double(_moved(model))
    return protection, stage, next(stage.batches(4)), student, teacher


def _counted(batch: dict[str, Tensor], n: int, length: int) -> list[int]:
    return [t for t in range(length) if "decoder_input_ids" not in batch or batch["labels"][n, t] != IGNORE]


def _softmax(scores: list[Tensor]) -> list[Tensor]:
    whole = sum(score.exp() for score in scores)
    return [score.exp() / whole for score in scores]


def _kl(p: list[Tensor], q: list[Tensor]) -> Tensor:
    return sum(a * (a / b).log() for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("distance", ["forward_kl", "reverse_kl"])
@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_logits_are_the_equation(architecture: str, objective: str, distance: str) -> None:
    """T² · mean over rows of the mean over labels of the sum over words."""
    options = {"compare": "logits", "distance": distance, "temperature": 2.0, "weight": 0.7}
    protection, stage, batch, student, teacher = _begun(architecture, objective, **options)
    new, old = _logits(student, batch), _logits(teacher, batch).detach()
    rows = []
    for n in range(len(new)):
        labels = [k for k in range(new.shape[1]) if batch["labels"][n, k] != IGNORE]
        pairs = [(torch.softmax(old[n, k] / 2, 0), torch.softmax(new[n, k] / 2, 0)) for k in labels]
        pairs = pairs if distance == "forward_kl" else [(q, p) for p, q in pairs]
        rows.append(sum((a * (a / b).log()).sum() for a, b in pairs) / len(labels))
    expected = 0.7 * 4 * sum(rows) / len(rows)
    outputs, extra = protection.forward(stage.model, batch)
    torch.testing.assert_close(extra["kd/divergence"].double(), expected.detach(), rtol=1e-3, atol=1e-8)
    plain = stage.objective.forward(stage.model, batch).losses
    torch.testing.assert_close(outputs.losses, plain)
    _same_gradient(stage.model, extra["kd/divergence"], student, expected)


def _same_gradient(model: nn.Module, ours: Tensor, reference: nn.Module, expected: Tensor) -> None:
    model.zero_grad()
    ours.backward()
    expected.backward()
    scale = max(float(p.grad.abs().max()) for p in reference.parameters() if p.grad is not None)
    for parameter, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        if wanted.grad is not None and parameter.grad is not None:
            torch.testing.assert_close(parameter.grad.double(), wanted.grad, rtol=2e-3, atol=2e-5 * scale)
        else:
            assert wanted.grad is None or float(wanted.grad.abs().max()) < 1e-12 * max(scale, 1)


@pytest.mark.parametrize(("architecture", "objective"), KINDS)
def test_representations_squared_are_the_equation(architecture: str, objective: str) -> None:
    protection, stage, batch, student, teacher = _begun(architecture, objective, distance="squared", weight=0.3)
    new, old = _hidden(student, batch), _hidden(teacher, batch).detach()
    texts = []
    for n in range(len(new)):
        tokens = _counted(batch, n, new.shape[1])
        texts.append(sum(((new[n, t] - old[n, t]) ** 2).sum() for t in tokens) / len(tokens))
    expected = 0.3 * sum(texts) / len(texts)
    extra = protection.forward(stage.model, batch)[1]
    torch.testing.assert_close(extra["kd/divergence"].double(), expected.detach(), rtol=1e-3, atol=1e-8)
    _same_gradient(stage.model, extra["kd/divergence"], student, expected)


def _texts(model: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
    hidden = _hidden(model, batch)
    means = [
        sum(hidden[n, t] for t in _counted(batch, n, hidden.shape[1])) / len(_counted(batch, n, hidden.shape[1]))
        for n in range(len(hidden))
    ]
    return [mean / mean.norm() for mean in means]


@pytest.mark.parametrize(("architecture", "objective"), [KINDS[0], KINDS[1], KINDS[3]])
def test_likeness_within_a_batch_is_the_equation(architecture: str, objective: str) -> None:
    options = {"compare": "batch", "distance": "forward_kl", "temperature": 0.2, "simcse": 0.5}
    protection, stage, batch, student, teacher = _begun(architecture, objective, **options)
    new, old = _texts(student, batch), [text.detach() for text in _texts(teacher, batch)]
    count = range(len(new))
    divergences, contrasts = [], []
    for i in count:
        others = [j for j in count if j != i]
        p, q = (_softmax([texts[i] @ texts[j] / 0.2 for j in others]) for texts in (old, new))
        divergences.append(_kl(p, q))
        contrasts.append(-_softmax([new[i] @ new[j] / 0.2 for j in count])[i].log())  # no dropout: a pair is one vector
    extra = protection.forward(stage.model, batch)[1]
    expected = sum(divergences) / len(divergences)
    torch.testing.assert_close(extra["kd/divergence"].double(), expected.detach(), rtol=2e-3, atol=1e-8)
    torch.testing.assert_close(
        extra["kd/simcse"].item(), 0.5 * float(sum(contrasts).detach()) / len(contrasts), rtol=1e-4, atol=0
    )
    _same_gradient(stage.model, extra["kd/divergence"], student, expected)


def test_likeness_to_a_queue_is_the_equation_and_the_queue_moves_once_a_step() -> None:
    """Two micro-batches a step: both see the queue as the step before left it, and the oldest texts leave."""
    protection, stage, _, student, teacher = _begun(
        "gpt2", "causal", compare="queue", distance="forward_kl", temperature=0.1, queue=6
    )
    method = protection.methods[0]
    queue: list[Tensor] = []
    batches = list(stages.stage(stage.model, 1, "causal", batch_size=2, count=8).batches(8))
    for step in (0, 1):
        for batch in batches[2 * step : 2 * step + 2]:
            new, old = _texts(student, batch), [text.detach() for text in _texts(teacher, batch)]
            found = []
            for own, as_taught in zip(new, old, strict=True):
                known = [*queue[-6:], as_taught]
                p, q = (_softmax([one @ other / 0.1 for other in known]) for one in (as_taught, own))
                found.append(_kl(p, q))
            extra = protection.forward(stage.model, batch)[1]
            expected = float(sum(found).detach()) / len(found)
            assert extra["kd/divergence"].item() == pytest.approx(expected, rel=2e-3, abs=1e-7)
            assert (expected > 1e-6) == (step > 0), "a text alone is like itself, whatever it is"
        for batch in batches[2 * step : 2 * step + 2]:
            queue += [text.detach() for text in _texts(teacher, batch)]
        method.after_step(stage)
        held = method.memory().tensors["queue"]
        torch.testing.assert_close(held.double(), torch.stack(queue[-6:]), rtol=1e-4, atol=1e-6)
    again = KD(compare="queue", queue=6)
    again.load_memory(method.memory())
    assert torch.equal(again.memory().tensors["queue"], held)
    method.end_domain(stage)
    assert not method.memory(), "the next teacher sees the texts in another way"


def test_a_text_alone_is_like_no_other_and_that_is_said() -> None:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal", batch_size=1, steps=3)
    parts = stages.learn([build("kd_contrast")], stage)
    assert all(not part["kd/divergence"] for part in parts)
    assert any("compares the texts of a micro-batch, and 3 micro-batches had only one" in note for note in stage.notes)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_two_passes_without_dropout_are_one_and_that_is_said(dropout: float) -> None:
    stage = stages.stage(tiny.model("gpt2", dropout=dropout), 1, "causal")
    stages.begin([build("kd_contrast")], stage)
    assert ["'simcse': the model has no dropout" in note for note in stage.notes] == [True] * (not dropout)


def test_likeness_within_a_batch_asks_the_device_for_nothing() -> None:
    """On the meta device there is no number to be had: how many a mask leaves, for one."""
    texts = torch.empty(5, 8, device="meta")
    assert [one.shape for one in among_the_batch(texts, texts)] == [(5, 4), (5, 4)]


@pytest.mark.parametrize("name", ["kd_representations", "kd_contrast", "kd_seed"])
def test_padding_of_other_peoples_batches_is_no_text(name: str) -> None:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    protection = Protection([build({"name": name, "weight": 50.0})], stage)
    protection.begin()
    _moved(stage.model)
    batch = next(stage.batches(4)) | {"attention_mask": torch.ones(4, stages.S, dtype=torch.long)}
    del batch["position_ids"]
    wider = {key: F.pad(value, (0, 6), value=IGNORE if key == "labels" else 0) for key, value in batch.items()}
    method = protection.methods[0]
    method._queue.add(F.normalize(torch.randn(7, 32, generator=torch.Generator().manual_seed(0)), dim=-1))
    method.after_step(stage)
    one, other = (protection.forward(stage.model.eval(), each)[1]["kd/divergence"].item() for each in (batch, wider))
    assert one == pytest.approx(other, rel=1e-3)
    assert one > 1e-6


# -- answers from a file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [tiny.VOCABULARY, 5])
@pytest.mark.parametrize(("architecture", "objective"), WRITING)
def test_cached_answers_are_the_teachers(architecture: str, objective: str, top_k: int) -> None:
    """All words but one are the whole divergence; five of them and the rest are the lumped one."""
    options = {"compare": "logits", "distance": "forward_kl", "temperature": 1.5}
    protection, stage, batch, student, teacher = _begun(architecture, objective, top_k=top_k, **options)
    method = protection.methods[0]
    assert method._teacher is None
    assert method._cached.rows == stage.source.size
    new, old = _logits(student, batch), _logits(teacher, batch).detach()
    rows = []
    for n in range(len(new)):
        tokens = []
        for k in range(new.shape[1]):
            if batch["labels"][n, k] == IGNORE:
                continue
            p, q = torch.softmax(old[n, k] / 1.5, 0), torch.softmax(new[n, k] / 1.5, 0)
            kept = p.topk(min(top_k, len(p) - 1)).indices.tolist()
            rest = [word for word in range(len(p)) if word not in kept]
            lumped = [([x[word] for word in kept] + [x[rest].sum()]) for x in (p, q)]
            tokens.append(_kl(*lumped))
        rows.append(sum(tokens) / len(tokens))
    expected = 1.5**2 * sum(rows) / len(rows)
    extra = protection.forward(stage.model, batch)[1]
    torch.testing.assert_close(extra["kd/divergence"].double(), expected.detach(), rtol=1e-3, atol=1e-7)
    _same_gradient(stage.model, extra["kd/divergence"], student, expected)


def test_a_lumped_divergence_is_at_most_the_whole_one_and_begins_at_0() -> None:
    values = []
    for top_k in (1, 8, 64, None):
        protection, stage, batch, *_ = _begun("gpt2", "causal", compare="logits", distance="forward_kl", top_k=top_k)
        values.append(protection.forward(stage.model, batch)[1]["kd/divergence"].item())
    assert values == sorted(values)
    stage = stages.stage(tiny.model("gpt2"), 1, "causal")
    protection = Protection([KD(compare="logits", distance="forward_kl", top_k=4)], stage)
    protection.begin()
    value = protection.forward(stage.model, next(stage.batches(4)))[1]["kd/divergence"].item()
    assert value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("architecture", "objective"), WRITING)
def test_training_with_all_words_in_the_file_is_training_with_the_teacher(architecture: str, objective: str) -> None:
    """Over more than one pass, in which a batch is padded to another width; the source begins where it did."""
    learnt = []
    for top_k in (None, tiny.VOCABULARY):
        model = tiny.model(architecture)
        stage = stages.stage(model, 1, objective, steps=5, batch_size=4)
        stage.rows_per_step = stage.batch_size
        before = stage.source.state_dict()
        method = KD(compare="logits", distance="forward_kl", weight=3.0, top_k=top_k)
        if top_k is not None:
            CachedAnswers(stage, 3, 1.0)
            assert stage.source.state_dict() == before
        parts = stages.learn([method], stage, optimizer=torch.optim.SGD, lr=0.1)
        assert not stage.notes
        learnt.append((stages.weights(model), [float(part["kd/divergence"]) for part in parts]))
    (one, losses), (other, again) = learnt
    assert losses == pytest.approx(again, rel=1e-3, abs=1e-6)
    assert losses[-1] > 1e-5
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6)


def test_rows_are_looked_up_on_the_host() -> None:
    """A tensor on the meta device cannot be read, as one on a GPU cannot without waiting for it."""
    stage = stages.stage(tiny.model("gpt2"), 1, "causal", steps=3)
    stage.rows_per_step = 4
    cached = CachedAnswers(stage, 4, 1.0)
    batch = next(stage.batches(4))
    view = cached.beside({name: value.to("meta") for name, value in batch.items()}, lambda old, new: new, batch)
    assert cached.hits == cached.looked_up == 4
    assert view.labels.device.type == "meta"
    with pytest.raises(NotImplementedError, match="meta"):
        cached.beside({name: value.to("meta") for name, value in batch.items()}, lambda old, new: new)


def test_rows_of_other_domains_have_no_answers_and_that_is_said() -> None:
    model, kd, replay = tiny.model("gpt2"), build({"name": "kd_logits", "top_k": 8}), Replay(share=0.5)
    for index in (1, 2):
        stage = stages.stage(model, index, "causal", steps=6)
        stage.rows_per_step = stage.batch_size
        stages.learn([kd, replay], stage)
    assert stage.notes == [
        "Method 'kd_logits' had stored predictions for 12 of 24 rows; the others (of other domains, or changed by "
        "another method) were trained without distillation."
    ]


def test_where_training_has_an_order_of_its_own_all_rows_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal", steps=2)
    assert CachedAnswers(stage, 4, 1.0).rows == 2
    monkeypatch.setattr(type(stage.source), "in_training_order", False)
    assert CachedAnswers(stage, 4, 1.0).rows == stage.source.size == 12


def test_text_without_a_label_has_no_answers_to_keep() -> None:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal", steps=2)
    stage.source.arrays["segments"][:] = range(stages.S)  # a document each token
    with pytest.raises(MethodError, match=r"have no labels.*`top_k: null`"):
        CachedAnswers(stage, 4, 1.0)


def test_two_segmentings_of_the_same_tokens_are_two_rows() -> None:
    stage = stages.stage(tiny.model("gpt2"), 1, "causal", steps=1, batch_size=1)
    row = stages.blocks(1)[0]
    other = row | {"segments": 1 - row["segments"][::-1]}
    assert (other["segments"] != row["segments"]).any()
    cached = CachedAnswers(stage, 4, 1.0)
    cached._keys, cached._places = cached._keys[:0], cached._places[:0]
    from everlearn.methods.distillation.cached import _keys

    keys = _keys(stage.objective.collate([row, other, row], [0, 1, 2]))
    assert keys[0] == keys[2] != keys[1]


# -- what goes together -----------------------------------------------------------------------------------------------


def test_masked_text_has_other_labels_in_each_pass() -> None:
    method = build({"name": "kd_logits", "top_k": 8})
    with pytest.raises(MethodError, match=r"'kd_logits', option 'top_k'.*masked text.*`top_k: null`\.$"):
        check_methods([method], stages.setting(tiny.model(), [method]))
    check_methods([method], stages.setting(tiny.model("gpt2"), [method], "causal"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"compare": "logits", "distance": "squared"}, "option 'distance': 'squared' is for representations"),
        ({"compare": "queue", "softmax": "sequence"}, "option 'softmax'"),
        ({"distance": "squared", "softmax": "sequence"}, "option 'softmax'"),
        ({"top_k": 8}, "option 'top_k': 8 predicted tokens"),
        ({"compare": "logits", "top_k": 8, "teacher_dropout": True}, "option 'top_k': 8 predicted tokens"),
        ({"simcse": 1.0}, "option 'simcse': 1.0 contrasts texts"),
        ({"compare": "batch", "queue": 8}, "option 'queue': 8 has no effect with `compare: batch`"),
        ({"distance": "squared", "temperature": 2.0}, "option 'temperature': 2.0 has no effect with .*`distance: sq"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MethodError, match=sentence):
        KD(**options)


def test_costs() -> None:
    model = tiny.model("gpt2")
    copy = KD().cost(model).memory_bytes
    assert KD(compare="logits").cost(model).memory_bytes == copy
    cached = KD(compare="logits", top_k=8).cost(model)
    assert (cached.memory_bytes, cached.passes_per_step, cached.passes_per_row) == (0, 0, pytest.approx(1 / 3))
    assert KD(compare="queue", queue=10).cost(model).memory_bytes == copy + 8 * 10 * 32
    assert build("kd_contrast").cost(model).passes_per_step == pytest.approx(4 / 3)
    assert KD(compare="logits").cost(tiny.model()).passes_per_step == pytest.approx(1 / 3)


@pytest.mark.parametrize(("steps", "asked"), [(8, 8), (20, 12)])
def test_the_rows_that_are_asked_are_those_that_are_declared(steps: int, asked: int) -> None:
    """Of twelve rows each that is trained on, once, however often that is."""
    method, stage = KD(compare="logits", top_k=3), stages.stage(tiny.model("gpt2"), objective="causal", steps=steps)
    method.begin_domain(stage)
    assert method._cached.rows == asked
    assert method.cost(stage.model).outside(12, trained=steps * stage.rows_per_step) == math.ceil(asked / 3)
