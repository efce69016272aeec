"""Objectives against the models' own losses, packed against unpacked text; the in-place cross-entropy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from everlearn.errors import ModelError, RecipeError
from everlearn.methods.base import View
from everlearn.model import cross_entropy as module
from everlearn.model import vocabulary_head
from everlearn.model.anatomy import anatomy
from everlearn.model.cross_entropy import cross_entropy
from everlearn.model.gates import Gates
from everlearn.model.objectives import IGNORE, Masked, make_objective
from everlearn.model.vocabulary_head import logits_of, observe_logits, output_head

ENCODERS = [a for a in tiny.ARCHITECTURES if tiny.objective_of(a) == "masked"]
DECODERS = [a for a in tiny.ARCHITECTURES if tiny.objective_of(a) == "causal"]
S = 32


def blocks(count: int = 4, documents: int = 3, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Random rows with document boundaries at random places."""
    generator = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        cuts = np.sort(generator.choice(np.arange(4, S - 4), documents - 1, replace=False))
        segments = np.searchsorted(cuts, np.arange(S), side="right")
        out.append(
            {
                "input_ids": generator.integers(5, tiny.VOCABULARY, S, dtype=np.int32),
                "segments": segments.astype(np.int32),
            }
        )
    return out


@pytest.mark.parametrize("architecture", ENCODERS)
def test_masked_loss_is_the_models_own(architecture: str) -> None:
    model = tiny.model(architecture)
    objective = make_objective("masked", model, tiny.tokenizer())
    batch = objective.collate(blocks(), range(4))
    outputs = objective.forward(model, batch)
    labels = torch.full_like(batch["input_ids"], IGNORE).scatter(1, batch["positions"], batch["labels"])
    expected = model(input_ids=batch["input_ids"], labels=labels).loss
    torch.testing.assert_close(outputs.loss, expected)
    assert outputs.hidden.shape == (4, S, 32)
    assert model(input_ids=batch["input_ids"]).logits.shape == (4, S, tiny.VOCABULARY), "the head is itself again"


@pytest.mark.parametrize("architecture", DECODERS)
@pytest.mark.parametrize("chunk", [2**26, 7 * tiny.VOCABULARY])
def test_causal_loss_on_packed_rows_is_the_loss_of_each_document_alone(
    architecture: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", chunk)
    model = tiny.model(architecture)
    objective = make_objective("causal", model, tiny.tokenizer())
    rows = blocks()
    batch = objective.collate(rows, range(4))
    outputs = objective.forward(model, batch)
    outputs.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    total, count = torch.zeros(()), 0
    for row in rows:
        for document in range(3):
            ids = torch.from_numpy(row["input_ids"][row["segments"] == document].astype(np.int64))[None]
            if ids.shape[1] > 1:
                total = total + model(input_ids=ids, labels=ids).loss * (ids.shape[1] - 1)
                count += ids.shape[1] - 1
    assert outputs.items == count
    torch.testing.assert_close(outputs.loss, total / count, rtol=1e-5, atol=1e-5)
    (total / count).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("architecture", ["roberta", "bert"])
def test_isolated_encoder_rows_equal_each_document_alone(architecture: str) -> None:
    model = tiny.model(architecture)
    objective = make_objective("masked", model, tiny.tokenizer(), isolate=True)
    row = blocks(1)
    batch = objective.collate(row, [0])
    together = objective.hidden(model, objective.inputs(batch))[0]
    for document in range(3):
        at = torch.from_numpy(row[0]["segments"] == document)
        alone = model.base_model(input_ids=batch["input_ids"][:, at]).last_hidden_state[0]
        torch.testing.assert_close(together[at], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["roberta", "bert"])
def test_a_masked_model_predicts_all_of_an_answer_from_its_own_prompt(architecture: str) -> None:
    model, mask = tiny.model(architecture), tiny.tokenizer().mask_token_id
    objective = make_objective("masked", model, tiny.tokenizer(), examples=True)
    rows, plain = blocks(3), blocks(2, seed=1)
    for row in rows:
        row["labels"] = np.where((np.arange(S) % 7) > 4, row["input_ids"], IGNORE).astype(np.int32)
    batch = objective.collate(rows, range(3))
    total, count = 0.0, 0
    for row in rows:
        for document in range(3):
            at = row["segments"] == document
            ids, labels = (torch.from_numpy(row[key][at].astype(np.int64))[None] for key in ("input_ids", "labels"))
            if wanted := int((labels != IGNORE).sum()):
                hidden_answer = torch.where(labels == IGNORE, ids, mask)
                total += float(model(input_ids=hidden_answer, labels=labels).loss.detach()) * wanted
                count += wanted
    assert objective.items(batch).sum() == count
    assert float(objective.forward(model, batch).loss.detach()) == pytest.approx(total / count, rel=1e-5)
    # Plain rows beside them (replay, general text) are masked as they would be alone.
    mixed, alone = objective.collate([*rows, *plain], range(5)), objective.collate(plain, [3, 4])
    torch.testing.assert_close(mixed["input_ids"][3:], alone["input_ids"])
    losses = objective.forward(model, mixed).losses
    torch.testing.assert_close(losses[3:].sum(1), objective.forward(model, alone).losses.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["roberta", "llama"])
def test_examples_are_isolated(architecture: str) -> None:
    model = tiny.model(architecture)
    with pytest.raises(RecipeError, match="would read the prompts and answers of other examples"):
        make_objective(None, model, tiny.tokenizer(), isolate=False, examples=True)


def test_plain_rows_of_an_encoder_are_not_isolated_unless_asked() -> None:
    model = tiny.model("roberta")
    assert not make_objective("masked", model, tiny.tokenizer()).isolate  # type: ignore[attr-defined]


@pytest.mark.parametrize("architecture", ["t5", "bart"])
def test_text_to_text_loss_of_an_encoder_decoder_is_the_models_own(architecture: str) -> None:
    model = tiny.model(architecture)
    if architecture == "bart":  # it adds a bias to what its head gives; released models have 0 there
        model.final_logits_bias = torch.randn(1, tiny.VOCABULARY, generator=torch.Generator().manual_seed(0))
    objective = make_objective(None, model, tiny.tokenizer())
    generator = np.random.default_rng(0)
    rows = [
        {
            "input_ids": generator.integers(5, tiny.VOCABULARY, n, dtype=np.int32),
            "labels": generator.integers(5, tiny.VOCABULARY, m, dtype=np.int32),
        }
        for n, m in [(5, 3), (9, 2), (17, 6)]
    ]
    batch = objective.collate(rows, range(3))
    expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]).loss
    torch.testing.assert_close(objective.forward(model, batch).loss, expected)
    assert objective.forward(model, batch).items == 11
    wanted = batch["labels"][batch["labels"] != IGNORE]
    likely = objective.log_probabilities(model, batch).flatten(0, 1)[batch["labels"].flatten() != IGNORE]
    torch.testing.assert_close(-likely.gather(1, wanted[:, None]).mean().float(), expected)
    logits = logits_of(model, objective.label_features(model, batch))[batch["labels"].flatten() != IGNORE]
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, wanted), expected)


@pytest.mark.parametrize("name", ["causal", "text-to-text"])
def test_a_decoder_learns_the_answers_only(name: str) -> None:
    model = tiny.model("llama")
    objective = make_objective(name, model, tiny.tokenizer(), examples=True)
    rows = blocks(3)
    for row in rows:
        answer = (np.arange(S) % 7) > 4
        row["labels"] = np.where(answer, row["input_ids"], IGNORE).astype(np.int32)
    batch = objective.collate(rows, range(3))
    total, count = 0.0, 0
    for row in rows:
        for document in range(3):
            at = row["segments"] == document
            ids = torch.from_numpy(row["input_ids"][at].astype(np.int64))[None]
            labels = torch.from_numpy(row["labels"][at].astype(np.int64))[None]
            wanted = int((labels[:, 1:] != IGNORE).sum())
            if wanted:
                total += float(model(input_ids=ids, labels=labels).loss.detach()) * wanted
                count += wanted
    assert objective.items(batch).sum() == count
    assert float(objective.forward(model, batch).loss.detach()) == pytest.approx(total / count, rel=1e-5)
    # Plain rows beside them (another domain's, replayed or general text) are learnt as they would be alone.
    plain = make_objective("causal", model, tiny.tokenizer()).collate(blocks(2, seed=3), [3, 4])
    mixed = objective.collate([*rows, *blocks(2, seed=3)], range(5))
    losses = objective.forward(model, mixed).losses[3:].sum(1)
    expected = torch.where(plain["labels"] == IGNORE, 0, objective.forward(model, plain).losses).sum(1)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "t5"])
def test_views_share_the_pass_and_change_nothing(architecture: str) -> None:
    model = tiny.model(architecture)
    objective = make_objective(None, model, tiny.tokenizer())
    if architecture == "t5":
        rows = [{"input_ids": b["input_ids"], "labels": b["input_ids"][:5]} for b in blocks()]
    else:
        rows = blocks()
    batch = objective.collate(rows, range(4))
    alone = objective.forward(model, batch)
    inputs = objective.inputs(batch)
    view = View({name: value[:2] for name, value in inputs.items()})
    together = objective.forward(model, batch, [view])
    torch.testing.assert_close(together.losses, alone.losses)
    torch.testing.assert_close(together.views[0], alone.hidden[:2])
    torch.testing.assert_close(objective.hidden(model, inputs), alone.hidden)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2", "llama"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("chunk", [2**26, 7 * tiny.VOCABULARY])
def test_labelled_views_have_the_losses_of_a_pass_of_their_own(
    architecture: str, gated: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With positions (masked) and without (causal), between views without labels, gated or not."""
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", chunk)
    model = tiny.model(architecture)
    objective = make_objective(None, model, tiny.tokenizer())
    batch = objective.collate(blocks(), range(4))
    other = objective.collate(blocks(3, seed=1), range(10, 13))
    third = objective.collate(blocks(2, seed=2), range(20, 22))
    generator = torch.Generator().manual_seed(0)
    factors = {site.name: torch.rand(site.units, generator=generator) for site in anatomy(model).sites}
    views = [
        View(objective.inputs(other), factors if gated else None),
        View(objective.inputs(other), None, other["labels"], other.get("positions")),
        View(objective.inputs(third), factors if gated else None, third["labels"], third.get("positions")),
        View(objective.inputs(third)),
    ]
    outputs = objective.forward(model, batch, views)
    alone = objective.forward(model, batch)
    torch.testing.assert_close(outputs.losses, alone.losses)
    assert outputs.items == alone.items
    torch.testing.assert_close(outputs.loss, alone.loss)
    assert [losses is None for losses in outputs.view_losses] == [True, False, False, True]

    assert outputs.view_losses[1].shape == other["labels"].shape
    torch.testing.assert_close(outputs.view_losses[1], objective.forward(model, other).losses)
    with Gates(model) as gates:
        gates.set(factors if gated else None)
        expected = objective.forward(model, third).losses
        hidden = objective.hidden(model, objective.inputs(other))
    torch.testing.assert_close(outputs.view_losses[2], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs.views[0], hidden, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs.views[3], objective.hidden(model, objective.inputs(third)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
def test_labelled_views_have_the_gradients_of_a_pass_of_their_own(architecture: str) -> None:
    model = tiny.model(architecture)
    objective = make_objective(None, model, tiny.tokenizer())
    batch, other = objective.collate(blocks(), range(4)), objective.collate(blocks(3, seed=1), range(10, 13))
    view = View(objective.inputs(other), None, other["labels"], other.get("positions"))
    gradients = []
    for together in (True, False):
        model.zero_grad()
        if together:
            outputs = objective.forward(model, batch, [view])
            (outputs.loss + 0.3 * outputs.view_losses[0].mean()).backward()
        else:
            (objective.forward(model, batch).loss + 0.3 * objective.forward(model, other).losses.mean()).backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    for name, value in gradients[0].items():
        torch.testing.assert_close(value, gradients[1][name], rtol=1e-4, atol=1e-6)


def test_a_view_may_have_another_number_of_labels_than_the_batch() -> None:
    model = tiny.model("roberta")
    objective = make_objective(None, model, tiny.tokenizer())
    batch, other = objective.collate(blocks(), range(4)), objective.collate(blocks(2, seed=1), range(10, 12))
    labels, positions = other["labels"][:, :2], other["positions"][:, :2]
    outputs = objective.forward(model, batch, [View(objective.inputs(other), None, labels, positions)])
    torch.testing.assert_close(outputs.view_losses[0], objective.forward(model, other).losses[:, :2])


@pytest.mark.parametrize("architecture", ["roberta", "gpt2"])
@pytest.mark.parametrize("chunk", [2**26, 7 * tiny.VOCABULARY])
def test_a_view_without_rows_is_another_loss_on_the_batchs_own(
    architecture: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between views with rows; the observers of logits still see the batch's own labels, once each."""
    monkeypatch.setattr(vocabulary_head, "LOGITS_PER_CHUNK", chunk)
    model = tiny.model(architecture)
    objective = make_objective(None, model, tiny.tokenizer())
    batch, other = objective.collate(blocks(), range(4)), objective.collate(blocks(3, seed=1), range(10, 13))
    labels, positions = batch["labels"], batch.get("positions")
    parts: list[slice] = []

    def squares(logits: torch.Tensor, wanted: torch.Tensor, at: slice) -> torch.Tensor:
        parts.append(at)
        assert torch.equal(labels.flatten()[at], wanted)
        return logits.square().sum(-1)

    views = [
        View(objective.inputs(other)),
        View(None, None, labels, positions, squares),
        View(objective.inputs(other), None, other["labels"], other.get("positions")),
        View(None, None, labels, positions),
    ]
    seen: list[torch.Tensor] = []
    handle = observe_logits(output_head(model), lambda logits, wanted: seen.append(wanted))
    outputs = objective.forward(model, batch, views)
    handle.remove()
    assert torch.equal(torch.cat(seen), labels.flatten())
    assert [(at.start, at.stop) for at in parts] == [
        (start, min(start + max(1, chunk // tiny.VOCABULARY), labels.numel()))
        for start in range(0, labels.numel(), max(1, chunk // tiny.VOCABULARY))
    ]
    torch.testing.assert_close(outputs.view_losses[2], objective.forward(model, other).losses)
    torch.testing.assert_close(outputs.view_losses[3], outputs.losses)
    assert torch.equal(outputs.views[1], outputs.hidden)
    logits = vocabulary_head.logits_of(model, objective.label_features(model, batch))
    torch.testing.assert_close(outputs.view_losses[1].flatten(), logits.square().sum(-1), rtol=1e-4, atol=1e-4)
    probabilities = objective.log_probabilities(model, batch).flatten(0, 1)
    torch.testing.assert_close(logits.double().log_softmax(-1), probabilities, rtol=1e-4, atol=1e-5)


def test_masking_depends_on_the_row_number_only() -> None:
    objective = Masked(tiny.tokenizer(), seed=3)
    rows = blocks(4)
    together = objective.collate(rows, [10, 11, 12, 13])
    for i, row in enumerate(rows):
        alone = objective.collate([row], [10 + i])
        for name, value in alone.items():
            assert torch.equal(value[0], together[name][i])
    assert not torch.equal(objective.collate(rows, range(4))["positions"], together["positions"])


def test_masking_chooses_a_fixed_number_and_spares_special_tokens() -> None:
    tokenizer = tiny.tokenizer()
    objective = Masked(tokenizer, probability=0.15)
    rows = blocks(200)
    for row in rows:
        row["input_ids"][[0, 10, 31]] = [0, 2, 2]
    batch = objective.collate(rows, range(200))
    assert batch["positions"].shape == (200, round(0.15 * S))
    assert not np.isin(batch["labels"].numpy(), tokenizer.all_special_ids).any()
    taken = batch["input_ids"].gather(1, batch["positions"])
    assert float((taken == tokenizer.mask_token_id).float().mean()) == pytest.approx(0.8, abs=0.04)
    assert float((taken == batch["labels"]).float().mean()) == pytest.approx(0.1, abs=0.03)
    untouched = batch["input_ids"].scatter(1, batch["positions"], batch["labels"])
    assert torch.equal(untouched, batch["plain_ids"])


def test_a_row_of_special_tokens_has_no_label() -> None:
    tokenizer = tiny.tokenizer()
    row = {"input_ids": np.full(S, tokenizer.eos_token_id, np.int32), "segments": np.zeros(S, np.int32)}
    batch = Masked(tokenizer).collate([row], [0])
    assert (batch["labels"] == IGNORE).all()
    model = tiny.model("roberta")
    assert float(make_objective("masked", model, tokenizer).forward(model, batch).loss.detach()) == 0


def test_what_does_not_fit_is_refused_with_a_sentence() -> None:
    tokenizer = tiny.tokenizer()
    with pytest.raises(ModelError, match=r"Objective 'causal' needs a model of kind decoder.*encoder"):
        make_objective("causal", tiny.model("roberta"), tokenizer)
    with pytest.raises(RecipeError, match=r"no objective 'maskd'.*Did you mean 'masked'"):
        make_objective("maskd", tiny.model("roberta"), tokenizer)
    without = tiny.tokenizer.__wrapped__()
    without.mask_token = None
    with pytest.raises(ModelError, match="mask token"):
        make_objective("masked", tiny.model("roberta"), without)


def reference(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Losses and the gradient of their weighted sum, in float64."""
    z = logits.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    softmax = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    counted = labels != IGNORE
    rows, at = np.arange(len(labels)), np.where(counted, labels, 0)
    losses = np.where(counted, np.log(np.exp(z).sum(1)) - z[rows, at], 0.0)
    gradient = softmax.copy()
    gradient[rows, at] -= 1
    return losses, gradient * (weights * counted)[:, None]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 50),
    scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
    ignored=st.floats(0, 1),
    at_once=st.sampled_from([1, 64, 2**18]),
    seed=st.integers(0, 99),
)
def test_losses_and_gradient_are_those_of_the_definition(
    rows: int, width: int, scale: float, ignored: float, at_once: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    logits = (scale * generator.standard_normal((rows, width))).astype(np.float32)
    labels = np.where(generator.random(rows) < ignored, IGNORE, generator.integers(0, width, rows))
    weights = generator.standard_normal(rows).astype(np.float32)
    losses, gradient = reference(logits, labels, weights)
    leaf = torch.from_numpy(logits.copy()).requires_grad_()
    before, module.VALUES_AT_ONCE = module.VALUES_AT_ONCE, at_once
    try:
        got = cross_entropy(leaf * 1, torch.from_numpy(labels), IGNORE)
        (got * torch.from_numpy(weights)).sum().backward()
    finally:
        module.VALUES_AT_ONCE = before
    # The size of the logits bounds the rounding of their differences.
    np.testing.assert_allclose(got.detach().numpy(), losses, rtol=1e-5, atol=1e-6 * (1 + scale))
    np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-4, atol=1e-6 * (1 + scale))
    assert (got.detach().numpy()[labels == IGNORE] == 0).all()
    assert (leaf.grad.numpy()[labels == IGNORE] == 0).all()


def test_a_second_backward_pass_is_refused_instead_of_wrong() -> None:
    leaf = torch.randn(3, 7, requires_grad=True)
    loss = cross_entropy(leaf * 1, torch.tensor([1, 2, IGNORE]), IGNORE).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_not_finite_logits_give_a_loss_that_is_not_finite() -> None:
    logits = torch.zeros(2, 5, requires_grad=True)
    losses = cross_entropy(logits * torch.tensor([[float("nan")], [1.0]]), torch.tensor([0, 1]), IGNORE)
    assert torch.isnan(losses[0])
    assert torch.isfinite(losses[1])
