"""ELLE: growth by schedule, recovery against a slow float64 reference, prompts per domain, memory and resume."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import stages
import tiny
from everlearn.errors import MethodError
from everlearn.methods.base import Reading
from everlearn.methods.engine.attachment import attached
from everlearn.methods.engine.protection import Protection, check_methods
from everlearn.methods.growth.elle import ELLE, RECOVERY
from everlearn.methods.growth.recovery import Lesson, Recovery, kl_per_row
from everlearn.methods.penalties.ewc import EWC
from everlearn.methods.prompts.domain_prompt import NO_PROMPT, DomainPrompts
from everlearn.model.objectives import IGNORE
from everlearn.model.parameter_substitution import substituting
from everlearn.model.vocabulary_head import logit_cap, output_head, projection
from everlearn.run.stage_files import load_memories, save_memories

QUIET = {"add_layers": 0, "add_heads": 0, "share": 0.3}
"""Prompts and old text alone."""


def learnt(method: ELLE, domains: int, architecture: str = "roberta", **options: int) -> nn.Module:
    """The model after so many domains."""
    model: nn.Module = tiny.model(architecture)
    for index in range(1, domains + 1):
        stage = stages.stage(model, index, tiny.objective_of(architecture), **options)
        stages.learn([method], stage)
        model = stage.model
    return model


def shape(model: nn.Module) -> tuple[int, int, int, int]:
    config = model.config
    return config.num_hidden_layers, config.num_attention_heads, config.hidden_size, config.intermediate_size


# -- growth ----------------------------------------------------------------------------------------------------


def test_the_model_grows_by_the_schedule_before_every_domain_but_the_first() -> None:
    method, model, shapes = ELLE(add_layers=[2, 0, 1], add_heads=[1, 2, 0]), tiny.model(), []
    for index in range(1, 6):
        stage = stages.stage(model, index, steps=1)
        stages.learn([method], stage)
        model = stage.model
        shapes.append(shape(model))
    assert shapes == [(2, 4, 32, 64), (4, 5, 40, 80), (4, 7, 56, 112), (5, 7, 56, 112), (6, 7, 56, 112)]
    lineage = method.memory().facts["lineage"]
    assert len(lineage) == 6
    assert sorted(lineage) == lineage
    assert {lineage.count(0), lineage.count(1)} == {3}, "both layers of the first model were copied in turn"


def test_growing_before_the_first_domain_is_an_option() -> None:
    assert shape(learnt(ELLE(grow_first=True, add_layers=[1, 3]), 1, steps=1)) == (3, 5, 40, 80)


def test_the_begin_of_a_domain_preserves_the_function_where_that_is_possible() -> None:
    """Twice the width and layers that write nothing: what GPT-2 gave without prompts, it gives grown."""
    method = ELLE(add_heads=4, new_layers="identity", noise=0, prompts=False)
    first = stages.stage(tiny.model("gpt2"), 1, "causal")
    stages.learn([method], first)
    second = stages.stage(first.model, 2, "causal")
    batch = next(second.batches(4))
    before = second.objective.forward(first.model, batch).loss
    stages.begin([method], second)
    assert second.model is not first.model
    torch.testing.assert_close(second.objective.forward(second.model.eval(), batch).loss, before)


def test_a_stage_is_a_plain_model_of_its_new_size(tmp_path: Path) -> None:
    model = learnt(ELLE(), 3, steps=2)
    assert not any("everlearn" in name for name, _ in model.named_parameters())
    model.save_pretrained(tmp_path)
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert shape(plain) == (4, 6, 48, 96)
    tokens = {"input_ids": torch.arange(5, 29)[None]}
    assert torch.equal(plain.eval()(**tokens).logits, model(**tokens).logits)


# -- recovery --------------------------------------------------------------------------------------------------


def test_the_teacher_s_weight_falls_to_zero_over_the_share_of_the_steps() -> None:
    method = ELLE(recovery=0.5)
    stage = stages.stage(tiny.model(), 2, steps=8)
    weights = []
    for _ in range(8):
        weights.append(method.recovery_weight(stage))
        stage.step += 1
    assert weights == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0, 0, 0])
    assert ELLE(recovery=0).recovery_weight(stage) == 0


@pytest.mark.parametrize("rows", [None, 2])
def test_divergence_against_a_slow_reference(rows: int | None) -> None:
    """T² Σ_v p_T(v) (ln p_T(v) − ln q_T(v)) per row, and its gradient, in chunks or whole."""
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(5, size, generator=generator, dtype=torch.float64) for size in (8, 6))
    ours, theirs = (torch.randn(11, size, generator=generator, dtype=torch.float64) for size in (8, 6))
    student.requires_grad_(True)
    temperature = 2.0
    expected = []
    for s, t in zip(student, teacher, strict=True):
        p = [float(x) for x in torch.exp(theirs @ t / temperature)]
        q = torch.exp(ours @ s / temperature)
        q = q / q.sum()
        total = sum(p)
        expected.append(
            temperature**2
            * sum(x / total * (torch.log(torch.tensor(x / total)) - y.log()) for x, y in zip(p, q, strict=True))
        )
    slow = torch.stack(expected)
    (gradient,) = torch.autograd.grad(slow.sum(), student)
    got = kl_per_row(student, lambda x: x @ ours.T, teacher, lambda x: x @ theirs.T, temperature, rows)
    torch.testing.assert_close(got.double(), slow, rtol=1e-5, atol=1e-6)
    got.sum().backward()
    torch.testing.assert_close(student.grad, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", ["own", "substituted"])
def test_logits_are_capped_and_transformed_as_the_model_does_it(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 2: T² · KL of cap · tanh(logits / cap), also when it is computed again in the backward pass."""
    cap, temperature = 1.0, 2.0
    student, teacher = (tiny.model("gemma2", seed=seed, final_logit_softcapping=cap) for seed in (0, 1))
    for model in (student, teacher):
        output_head(model).weight.data *= 20  # so that logits reach the cap
    stage = stages.stage(student, 1, "causal")
    batch = next(stage.batches(2))
    labels = batch["labels"].flatten()
    recovery, head = Recovery(), output_head(student)
    recovery.attach(student, RECOVERY)
    features = stage.objective.label_features(teacher, batch)
    taught = projection(output_head(teacher), logit_cap(teacher))
    recovery.lesson = Lesson(features.detach(), taught, labels, 1.0, temperature)
    monkeypatch.setattr("everlearn.methods.growth.recovery.LOGITS_PER_CHUNK", 5 * tiny.VOCABULARY)
    other = head.weight.detach() * 1.5
    with substituting(head, {"weight": other} if weights == "substituted" else {}):
        losses = stage.objective.forward(student, batch).losses.flatten()
    mine, theirs = (stage.objective.label_features(model, batch).double() for model in (student, teacher))
    mine = mine.detach().requires_grad_(True)
    read = other if weights == "substituted" else head.weight
    p, q = (
        (cap * torch.tanh(hidden @ weight.detach().double().T / cap) / temperature).log_softmax(-1)
        for hidden, weight in ((theirs, output_head(teacher).weight), (mine, read))
    )
    expected = (temperature**2 * (p.exp() * (p - q)).sum(-1)).masked_fill(labels == IGNORE, 0)
    torch.testing.assert_close(losses.double(), expected, rtol=1e-4, atol=1e-5)
    norm = student.model.norm.weight
    (gradient,) = torch.autograd.grad(losses.sum(), norm)
    (wanted,) = torch.autograd.grad(expected.sum(), mine)
    # The norm's output is w-hat · (1 + w): its weight's gradient is that of the features times themselves over 1 + w.
    wanted = (wanted * mine.detach()).sum(0) / (1 + norm.detach().double())
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama"])
def test_the_loss_is_the_mixture(architecture: str) -> None:
    """(1 − r) · L + r · T² · KL from logits of whole models, prompts included."""
    method = ELLE(recovery=1.0, temperature=2.0, share=0.3)
    first = learnt(method, 1, architecture)
    objective = tiny.objective_of(architecture)
    prompts = method.memory().tensors
    stage = stages.stage(first, 2, objective, steps=4)
    stages.begin([method], stage)
    stage.step += 1  # r = 3/4
    batch = next(stage.batches(4))
    loss, parts = Protection([method], stage).loss(stage.model.eval(), batch)
    assert set(parts) == {"loss"}
    again, _ = Protection([method], stage).loss(stage.model, batch)
    assert torch.equal(loss, again)

    teacher = copy.deepcopy(tiny.model(architecture))
    teacher.load_state_dict(first.state_dict(), strict=False)
    labelled = batch["labels"] != IGNORE

    def at_labels(model: nn.Module) -> Tensor:
        logits = model(**stage.objective.inputs(batch), **stage.objective.options()).logits.double()
        if "positions" in batch:
            logits = logits.gather(1, batch["positions"][:, :, None].expand(-1, -1, logits.shape[-1]))
        return logits[labelled]

    student, wanted = at_labels(stage.model), at_labels(teacher)
    assert prompts["prompt/d1"].shape == (32,)
    nll = -student.log_softmax(-1).gather(1, batch["labels"][labelled][:, None]).mean()
    p, q = (wanted / 2).log_softmax(-1), (student / 2).log_softmax(-1)
    kl = 4 * (p.exp() * (p - q)).sum(-1).mean()
    torch.testing.assert_close(loss.double(), 0.25 * nll + 0.75 * kl, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert all(parameter.grad is None for parameter in method._teacher.parameters())
    assert attached(stage.model, RECOVERY).lesson is None, "a lesson is for one pass"


def test_recovery_brings_the_function_back() -> None:
    """With a teacher the grown model stays nearer to the one it grew from than it does by itself."""
    first = tiny.model()
    far: dict[float, float] = {}
    for recovery in (0.0, 1.0):
        old, method = copy.deepcopy(first), ELLE(recovery=recovery, prompts=False, share=0, noise=0.1, grow_first=True)
        stage = stages.stage(copy.deepcopy(first), 1, steps=30)
        batch = next(stage.batches(4))
        seen: list[float] = []

        def measure(*_: object, stage=stage, old=old, batch=batch, seen=seen) -> None:
            inputs = stage.objective.inputs(batch)
            with torch.no_grad():
                p, q = (model.eval()(**inputs).logits.log_softmax(-1) for model in (old, stage.model))
            seen.append(float((p.exp() * (p - q)).sum(-1).mean()))
            stage.model.train()

        stages.learn([method], stage, lr=3e-3, each=measure)
        far[recovery] = seen[10]
    assert far[1.0] < 0.5 * far[0.0]


def test_the_teacher_goes_when_recovery_ends_and_does_not_come_back(tmp_path: Path) -> None:
    """Also from a checkpoint made after the end of recovery: the count goes on."""
    method = ELLE(recovery=0.5)
    stage = stages.stage(learnt(method, 1, steps=1), 2, steps=4)
    again = stages.stage(copy.deepcopy(stage.model), 2, steps=4)
    stages.begin([method], stage)
    for step, teaches in ((1, True), (2, False)):
        stage.step = step
        method.before_forward(stage, next(stage.batches(4)))
        assert (method._teacher is not None) == teaches
    save_memories(tmp_path, [method])
    resumed = ELLE(recovery=0.5)
    load_memories(tmp_path, [resumed])
    again.step = 2
    stages.begin([resumed], again)
    assert resumed.recovery_weight(again) == 0
    resumed.before_forward(again, next(again.batches(4)))
    assert attached(again.model, RECOVERY).lesson is None


# -- prompts ---------------------------------------------------------------------------------------------------


def test_every_row_is_read_with_the_prompt_of_its_own_domain() -> None:
    method = ELLE(**QUIET)
    model = learnt(method, 2)
    stage = stages.stage(model, 3)
    data = stages.begin([method], stage)
    kept = method._replay.memory()
    domains = dict(zip(map(tuple, kept.tensors["input_ids"].tolist()), kept.facts["domains"], strict=True))
    blocks = [next(data) for _ in range(40)]
    expected = [{"d1": 0, "d2": 1}.get(domains.get(tuple(block["input_ids"].tolist())), 2) for block in blocks]
    assert set(expected) == {0, 1, 2}
    method.before_forward(stage, stage.objective.collate(blocks, range(40)))
    assert attached(stage.model, "elle").rows.tolist() == expected


@pytest.mark.parametrize("architecture", ["roberta", "bert", "gpt2", "llama"])
def test_a_prompt_is_one_more_token_at_the_first_position(architecture: str) -> None:
    """Against the model given the longer sequence by hand; packed documents see the prompt and not each other."""
    model = tiny.model(architecture)
    vectors = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(5, tiny.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    encoder = architecture in ("roberta", "bert")
    at, first = int(encoder), 2 if architecture == "roberta" else 0
    embedded = model.get_input_embeddings()(ids)
    whole = torch.cat([embedded[:, :at], vectors[[1, 0]][:, None], embedded[:, at:]], 1)
    positions = torch.cat([torch.full((at + 1,), 0), torch.arange(at, 9)]) + first
    with torch.no_grad():
        mask = torch.ones(2, 10, dtype=torch.long)
        expected = model(inputs_embeds=whole, position_ids=positions.expand(2, -1), attention_mask=mask).logits
        expected = torch.cat([expected[:, :at], expected[:, at + 1 :]], 1)
        prompts = DomainPrompts(vectors)
        prompts.attach(model, "elle")
        prompts.rows = torch.tensor([1, 0])
        torch.testing.assert_close(model(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-5)
        last = model(input_ids=ids).logits
        prompts.rows = torch.tensor([1, 1])
        assert torch.equal(model(input_ids=ids).logits, last), "rows that nobody speaks of are of the last domain"
        if not encoder:
            packed = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3]).expand(2, -1)
            alone = model(input_ids=ids[:, 5:]).logits
            torch.testing.assert_close(
                model(input_ids=ids, position_ids=packed).logits[:, 5:], alone, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama"])
def test_a_row_without_a_prompt_is_read_as_the_plain_model_reads_it(architecture: str) -> None:
    plain, model = tiny.model(architecture), tiny.model(architecture)
    ids = torch.randint(5, tiny.VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    prompts = DomainPrompts(torch.randn(1, 32))
    prompts.attach(model, "elle")
    with torch.no_grad():
        prompts.rows = torch.tensor([NO_PROMPT, 0])
        got, expected = model(input_ids=ids).logits, plain(input_ids=ids).logits
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)
    assert float((got[1] - expected[1]).abs().max()) > 1e-4


def test_isolated_documents_of_an_encoder_stay_isolated_behind_a_prompt() -> None:
    model = tiny.model(attn_implementation="sdpa")
    DomainPrompts(torch.randn(1, 32)).attach(model, "elle")
    ids = torch.randint(5, tiny.VOCABULARY, (1, 8), generator=torch.Generator().manual_seed(1))
    segments = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
    inputs = {
        "attention_mask": (segments[:, :, None] == segments[:, None])[:, None],
        "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]) + 2,
    }
    other = ids.clone()
    other[0, 6] = 7
    with torch.no_grad():
        a, b = (model.roberta(input_ids=x, **inputs).last_hidden_state for x in (ids, other))
        assert not torch.allclose(a[0, 5:], b[0, 5:])
        # What one document says reaches another only by way of the prompt.
        model.everlearn_elle.rows = torch.tensor([NO_PROMPT])
        c = model.roberta(input_ids=ids, **inputs).last_hidden_state
        model.everlearn_elle.rows = torch.tensor([NO_PROMPT])
        d = model.roberta(input_ids=other, **inputs).last_hidden_state
        torch.testing.assert_close(c[0, :5], d[0, :5], rtol=1e-4, atol=1e-5)


def test_prompts_of_earlier_domains_grow_with_the_features_that_they_are_made_of() -> None:
    method = ELLE(add_layers=0, noise=0)
    first = learnt(method, 1)
    old = method.memory().tensors["prompt/d1"]
    stage = stages.stage(first, 2)
    table = first.get_input_embeddings().weight.detach()
    stages.begin([method], stage)
    grown = stage.model.get_input_embeddings().weight.detach()
    prompt = attached(stage.model, "elle").vectors[0].detach()
    assert prompt.shape == (40,)
    for feature in range(40):
        origin = next(i for i in range(32) if torch.equal(table[:, i], grown[:, feature]))
        assert prompt[feature] == old[origin]


def test_a_learnt_domain_is_tested_with_its_prompt_and_nothing_else_with_one() -> None:
    method = ELLE(**QUIET)
    model = learnt(method, 2)
    stage = stages.stage(model, 2)
    prompts = method.memory().tensors
    for domain, vector in (("d1", prompts["prompt/d1"]), ("d2", prompts["prompt/d2"]), ("d3", None), (None, None)):
        reading = Reading(domain, ("d1", "d2"), stage.objective, lambda: model, stage.batches)
        tested = method.test_model(copy.deepcopy(model), reading)
        found = getattr(tested, "everlearn_elle", None)
        if vector is None:
            assert found is None
        else:
            assert torch.equal(found.vectors.data, vector[None])
            assert torch.isfinite(stage.objective.forward(tested, next(stage.batches(2))).loss)


@pytest.mark.parametrize("architecture", ["roberta", "bert", "gpt2", "llama"])
def test_a_classifier_is_fine_tuned_behind_a_prompt(architecture: str, tmp_path: Path) -> None:
    method = ELLE()
    stages_model = learnt(method, 2, architecture, steps=2)
    stages_model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=2)
    stage = stages.stage(stages_model, 2, tiny.objective_of(architecture))
    reading = Reading("d1", ("d1", "d2"), stage.objective, lambda: stages_model, stage.batches)
    model = method.test_model(classifier, reading).train()
    model.config.pad_token_id = 1
    ids = torch.randint(5, tiny.VOCABULARY, (2, 9))
    ids[1, 6:] = 1
    logits = model(input_ids=ids, attention_mask=(ids != 1).long()).logits
    assert logits.shape == (2, 2)
    logits[:, 0].sum().backward()
    assert float(model.everlearn_elle.vectors.grad.abs().sum()) > 0


# -- memory, cost, refusals ------------------------------------------------------------------------------------


def test_an_interrupted_domain_goes_on_with_the_same_growth(tmp_path: Path) -> None:
    """Memory saved within a domain, loaded into a new method: same shapes and copies, same prompts, same r."""
    method = ELLE(recovery=1.0)
    first = learnt(method, 2, steps=2)
    copied = copy.deepcopy(first)
    stage = stages.stage(first, 3)
    stages.begin([method], stage)
    for _ in range(2):
        stage.step += 1
    save_memories(tmp_path, [method])
    again = ELLE(recovery=1.0)
    load_memories(tmp_path, [again])
    resumed = stages.stage(copied, 3)
    resumed.step = 2
    stages.begin([again], resumed)
    mine, theirs = stages.weights(stage.model), stages.weights(resumed.model)
    assert mine.keys() == theirs.keys()
    assert "everlearn_elle.vectors" in mine
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert again.recovery_weight(resumed) == method.recovery_weight(stage) == 0.5
    stages.end([again], resumed)
    stages.end([method], stage)
    assert again.memory().facts == method.memory().facts
    assert "step" not in again.memory().facts


def test_the_declared_parameters_are_those_of_one_growth() -> None:
    model = tiny.model()
    method = ELLE()
    first = learnt(method, 1)
    stage = stages.stage(first, 2)
    stages.begin([method], stage)
    count = [sum(p.numel() for p in m.parameters()) for m in (model, stage.model)]
    assert method.cost(model).parameters == count[1] - count[0]
    assert ELLE(share=0).cost(model).memory_bytes >= 4 * count[0], "the teacher"
    assert ELLE(share=0, recovery=0).cost(model).memory_bytes < 4 * count[0]
    assert ELLE(recovery=0).cost(model).passes_per_step == 0


def test_it_needs_what_its_options_use() -> None:
    for options, old_data, domain_id in (
        ({}, True, True),
        ({"prompts": False}, True, False),
        ({"share": 0}, False, True),
    ):
        needs = ELLE(**options).needs
        assert (needs.old_data, needs.domain_id_test) == (old_data, domain_id)


@pytest.mark.parametrize(
    ("options", "architecture", "others", "sentence"),
    [
        ({}, "distilbert", [], r"'elle' cannot grow a 'distilbert' model; it can grow bert,"),
        ({"new_layers": "identity"}, "roberta", [], r"'identity' is not exact.*Set `new_layers: copy`"),
        ({}, "roberta", [EWC()], r"'elle' replaces the model.*'ewc'.*Remove one"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict, architecture: str, others: list, sentence: str) -> None:
    methods = [ELLE(**options), *others]
    with pytest.raises(MethodError, match=sentence):
        check_methods(methods, stages.setting(tiny.model(architecture), methods, tiny.objective_of(architecture)))


@pytest.mark.parametrize("options", [{"add_layers": []}, {"add_heads": -1}, {"add_layers": [1, -2]}])
def test_amounts_are_checked(options: dict) -> None:
    with pytest.raises(MethodError, match=rf"option '{next(iter(options))}': must be 0 or more"):
        ELLE(**options)
