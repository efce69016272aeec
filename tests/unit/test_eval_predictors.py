"""Predictors against slow references: checkpoints, ensembles, and routers that choose by perplexity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch import Tensor, nn

import tiny
from everlearn.data.corpus import Document
from everlearn.errors import ModelError
from everlearn.model.objectives import IGNORE, make_objective
from everlearn.predictors import Checkpoint, Ensemble, PerplexityEnsemble, Predictor, TextRouter
from everlearn.predictors.predictor import models_of


def lively(architecture: str, seed: int) -> Any:
    model = tiny.model(architecture, seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


def members(architecture: str, count: int = 3, objective: str | None = None) -> tuple[tuple[Checkpoint, ...], Any]:
    models = [lively(architecture, seed) for seed in range(count)]
    made = make_objective(objective, models[0], tiny.tokenizer())
    return tuple(Checkpoint(model, made) for model in models), made


def batch_of(objective: Any, kind: str, rows: int = 5) -> dict[str, Tensor]:
    texts = tiny.texts(40, 4, words=30)
    target = None if kind != "encoder-decoder" else "the answer"
    blocks = list(tiny.pack([Document(text, target) for text in texts], 32, kind=kind))[:rows]  # type: ignore[arg-type]
    return objective.collate(blocks, range(rows))


def likely_by_hand(model: nn.Module, batch: dict[str, Tensor]) -> np.ndarray:
    """Probability of each label, float64 [B, K], from the model's own logits; 1 where there is no label."""
    inputs = {k: v for k, v in batch.items() if k not in ("labels", "positions", "plain_ids")}
    with torch.no_grad():
        whole = torch.softmax(model(**inputs, use_cache=False).logits.double(), -1)
    labels = batch["labels"]
    if "positions" in batch:
        whole = whole.gather(1, batch["positions"][..., None].expand(-1, -1, whole.shape[-1]))
    found = whole.gather(2, labels.clamp(min=0)[..., None])[..., 0]
    return found.masked_fill(labels == IGNORE, 1).numpy()


@pytest.mark.parametrize(
    ("architecture", "kind"), [("roberta", "encoder"), ("llama", "decoder"), ("t5", "encoder-decoder")]
)
def test_an_ensemble_scores_the_mean_probability(architecture: str, kind: str) -> None:
    parts, objective = members(architecture)
    batch = batch_of(objective, kind)
    with torch.no_grad():
        found = Ensemble(parts).label_losses(batch)
    mean = np.mean([likely_by_hand(part.model, batch) for part in parts], axis=0)
    assert found.numpy() == pytest.approx(-np.log(mean), abs=2e-4)
    assert (found[batch["labels"] == IGNORE] == 0).all()
    alone = np.mean([-np.log(likely_by_hand(part.model, batch)) for part in parts], axis=0)
    assert np.abs(alone + np.log(mean)).max() > 0.1, "a mean of losses would be something else"
    with torch.no_grad():
        assert torch.allclose(Ensemble(parts[:1]).label_losses(batch), parts[0].label_losses(batch), atol=1e-6)
        rows = Ensemble(parts).row_losses(batch)
    assert rows.numpy() == pytest.approx(found.sum(1).numpy() / (batch["labels"] != IGNORE).sum(1).numpy(), rel=1e-6)
    with pytest.raises(ModelError, match="gives no losses of labels"):
        Ensemble(parts, "geometric").label_losses(batch)


class Stated(Predictor):
    """Says what it is told to each row."""

    def __init__(self, probabilities: list[list[float]]) -> None:
        self.probabilities = torch.tensor(probabilities, dtype=torch.float64)

    def class_probabilities(self, inputs: Any) -> Tensor:
        return self.probabilities


def test_class_probabilities_are_mixed_as_named() -> None:
    one, other = [[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], [[0.1, 0.1, 0.8], [0.1, 0.6, 0.3]]
    a, b = np.array(one), np.array(other)
    product = np.sqrt(a * b)
    expected = {
        "mean": (a + b) / 2,
        "geometric": product / product.sum(1, keepdims=True),
        "confident": np.array([other[0], other[1]]),
    }
    for mix, by_hand in expected.items():
        found = Ensemble((Stated(one), Stated(other)), mix).class_probabilities({})  # type: ignore[arg-type]
        assert found.numpy() == pytest.approx(by_hand, abs=1e-12), mix
    never = Ensemble((Stated([[0.0, 1.0]]), Stated([[0.5, 0.5]])))
    assert never.class_probabilities({}).tolist() == [[0.25, 0.75]]


def prompts(left: bool) -> tuple[list[list[int]], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(5, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in (5, 16, 11, 8)]
    ids = [[1] * (16 - len(r)) + r if left else r + [1] * (16 - len(r)) for r in rows]
    mask = [[0] * (16 - len(r)) + [1] * len(r) if left else [1] * len(r) + [0] * (16 - len(r)) for r in rows]
    return rows, {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("mix", ["mean", "geometric", "confident"])
def test_an_ensemble_writes_token_by_token(mix: Any) -> None:
    parts, _ = members("qwen2")
    rows, inputs = prompts(left=True)
    with torch.no_grad():
        found = Ensemble(parts, mix).generate(inputs, max_new_tokens=8, stop=())
    alone = [parts[i].generate(inputs, max_new_tokens=8, stop=()) for i in range(3)]
    assert found not in alone
    for row, answer in zip(rows, found, strict=True):
        ids = list(row)
        for _ in range(8):
            with torch.no_grad():
                each = np.stack(
                    [torch.softmax(p.model(torch.tensor([ids])).logits[0, -1].double(), -1).numpy() for p in parts]
                )
            by_hand = {
                "mean": each.mean(0),
                "geometric": np.exp(np.log(each).mean(0)),
                "confident": each[each.max(1).argmax()],
            }[mix]
            ids.append(int(by_hand.argmax()))
        assert ids[len(row) :] == answer


def test_every_member_is_fine_tuned_and_found() -> None:
    parts, objective = members("llama", 2)
    tuned = []

    def tune(model: nn.Module, prepare: Any) -> nn.Module:
        tuned.append(model)
        return nn.Linear(1, 1)

    for predictor in (Ensemble(parts), TextRouter(parts, objective)):
        tuned.clear()
        assert models_of(predictor) == [part.model for part in parts]
        after = predictor.fine_tuned(tune)
        assert tuned == [part.model for part in parts]
        assert [type(model) for model in models_of(after)][:2] == [nn.Linear, nn.Linear]
    assert set(models_of(after)[2:]) == {part.model for part in parts}, "they still recognise the text"


# -- chosen by the text -------------------------------------------------------------------------------------------


def surprise(model: nn.Module, ids: list[int]) -> float:
    """Mean nats of a text's tokens but for the first, by definition."""
    with torch.no_grad():
        likely = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return -float(np.mean([float(likely[i, token]) for i, token in enumerate(ids[1:])]))


def test_a_prompt_is_read_by_the_member_that_knows_it() -> None:
    parts, objective = members("llama")
    rows, inputs = prompts(left=True)
    by_hand = [int(np.argmin([surprise(part.model, row) for part in parts])) for row in rows]
    assert len(set(by_hand)) > 1
    chosen = TextRouter(parts, objective)
    with torch.no_grad():
        assert chosen.chosen(inputs).tolist() == by_hand
        found = chosen.generate(inputs, max_new_tokens=6, stop=())
        alone = [part.generate(inputs, max_new_tokens=6, stop=()) for part in parts]
    assert found == [alone[member][row] for row, member in enumerate(by_hand)]


def test_options_of_a_prompt_are_all_read_by_one_member() -> None:
    parts, objective = members("llama")
    prompt, options = list(range(20, 32)), [[5, 6, 7], [300, 301], [40, 41, 42, 43]]
    rows = [[*prompt, *option] for option in options]
    ids = torch.tensor([row + [1] * (16 - len(row)) for row in rows])
    labels = torch.tensor([option + [IGNORE] * (4 - len(option)) for option in options])
    places = (torch.arange(4) + len(prompt) - 1).expand(3, 4).masked_fill(labels == IGNORE, 0)
    batch = {"input_ids": ids, "position_ids": torch.arange(16).expand(3, 16), "positions": places, "labels": labels}
    best = int(np.argmin([surprise(part.model, prompt) for part in parts]))
    with torch.no_grad():
        chosen = TextRouter(parts, objective)
        assert chosen.chosen(batch).tolist() == [best] * 3
        assert torch.allclose(chosen.label_losses(batch), parts[best].label_losses(batch), atol=1e-5)
    unsure = [int(np.argmin([p.label_losses(batch)[i].sum().item() for p in parts])) for i in range(3)]
    assert unsure != [best] * 3, "by the options themselves it would have been others"


@pytest.mark.parametrize(("architecture", "kind"), [("roberta", "encoder"), ("llama", "decoder")])
def test_held_out_rows_go_to_the_least_surprised(architecture: str, kind: str) -> None:
    parts, objective = members(architecture)
    batch = batch_of(objective, kind, rows=8)
    with torch.no_grad():
        each = torch.stack([part.row_losses(batch) for part in parts])
        found = TextRouter(parts, objective).row_losses(batch)
    assert len(set(each.argmin(0).tolist())) > 1
    assert torch.allclose(found, each.min(0).values, atol=1e-5)


def test_a_classified_text_is_recognised_by_its_language_model() -> None:
    parts, objective = members("roberta")
    rows, inputs = prompts(left=False)

    def tune(model: nn.Module, prepare: Any) -> nn.Module:
        number = next(i for i, part in enumerate(parts) if part.model is model)

        class Constant(nn.Module):
            def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
                logits = torch.zeros(len(input_ids), 3)
                logits[:, number] = 9
                return type("Output", (), {"logits": logits})

        return Constant()

    tuned = TextRouter(parts, objective).fine_tuned(tune)
    with torch.no_grad():
        found = tuned.class_probabilities(inputs).argmax(1).tolist()
        by_hand = []
        for number, row in enumerate(rows):
            block = {"input_ids": np.array(row, np.int32), "segments": np.zeros(len(row), np.int32)}
            text = objective.collate([block], [number])
            by_hand.append(int(np.argmin([float(part.row_losses(text)) for part in parts])))
    assert found == by_hand
    assert len(set(found)) > 1


def test_an_encoder_decoder_does_not_recognise_prompts() -> None:
    parts, objective = members("t5")
    with pytest.raises(ModelError, match="cannot recognise a text by an encoder-decoder"):
        TextRouter(parts, objective).generate(prompts(left=False)[1], max_new_tokens=2, stop=())


KINDS = [("roberta", "encoder"), ("llama", "decoder")]


def likely_of(model: nn.Module, ids: list[int]) -> np.ndarray:
    """Log-probabilities after each token, [S, V], from the model's own logits."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1).numpy()


def softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Of minus the first axis over the temperature; at 0 the least share everything."""
    if not temperature:
        least = scores == scores.min(0)
        return np.asarray(least / least.sum(0))
    powers = np.exp(-scores / temperature)
    return np.asarray(powers / powers.sum(0))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.2])
def test_a_token_is_predicted_by_those_who_knew_what_came_before_it(temperature: float) -> None:
    """Two documents in a row: each is begun by all members alike, and knows nothing of the other."""
    parts, objective = members("llama")
    generator = torch.Generator().manual_seed(2)
    first, second = (torch.randint(5, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in (9, 14))
    ids = torch.tensor([first + second])
    labels = torch.tensor([[*first[1:], IGNORE, *second[1:], IGNORE]])
    batch = {"input_ids": ids, "labels": labels, "position_ids": torch.tensor([[*range(9), *range(14)]])}
    expected = []
    for document in (first, second):
        each = [likely_of(part.model, document) for part in parts]
        nats = np.stack([-likely[range(len(document) - 1), document[1:]] for likely in each])
        for t in range(len(document) - 1):
            read = nats[:, :t].mean(1) if t else np.zeros(len(parts))
            expected.append(-np.log((softmax(read, temperature) * np.exp(-nats[:, t])).sum()))
        expected.append(0.0)
    with torch.no_grad():
        found = PerplexityEnsemble(parts, objective, temperature).label_losses(batch)
        packed = {
            "input_ids": ids,
            "position_ids": batch["position_ids"],
            "positions": torch.tensor([[6, 7, 20, 0]]),
            "labels": torch.tensor([[first[7], first[8], second[12], IGNORE]]),
        }
        answers = PerplexityEnsemble(parts, objective, temperature).label_losses(packed)
    assert found[0].tolist() == pytest.approx(expected, abs=2e-4)
    assert answers[0].tolist() == pytest.approx([expected[6], expected[7], expected[20], 0.0], abs=2e-4)


def every_label(objective: Any, architecture: str, kind: str) -> tuple[dict[str, Tensor], int]:
    """One text and every word of the vocabulary in the place of one label: rows [V], and the label's number."""
    batch = {name: value[:1] for name, value in batch_of(objective, kind).items() if name != "plain_ids"}
    words = torch.arange(tiny.VOCABULARY)
    rows = {name: value.expand(len(words), *value.shape[1:]).clone() for name, value in batch.items()}
    if architecture == "roberta":
        near = rows["positions"] < 16
        assert near[:, 0].all()
        rows = {
            "input_ids": rows["input_ids"][:, :16],
            "positions": rows["positions"].where(near, 0),
            "labels": rows["labels"].where(near, IGNORE),
        }
        rows["labels"][:, 0] = words
        return rows, 0
    ids = rows["input_ids"][:, :5].clone()  # a long row is recognised whatever its last word is
    ids[:, 4] = words
    labels = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORE)], 1)
    return {"input_ids": ids, "position_ids": torch.arange(5).expand_as(ids), "labels": labels}, 3


@pytest.mark.parametrize(("architecture", "kind"), KINDS)
@torch.no_grad()
def test_probabilities_of_all_words_sum_to_one(architecture: str, kind: str) -> None:
    """A weight that depends on the label that is predicted would make them more: that is the leak."""
    parts, objective = members(architecture)
    batch, number = every_label(objective, architecture, kind)

    def total(predictor: Any) -> float:
        return float(torch.exp(-predictor.label_losses(batch)[:, number].double()).sum())

    for temperature in (0.0, 0.5):
        assert total(PerplexityEnsemble(parts, objective, temperature)) == pytest.approx(1, abs=1e-4)
    for mix in ("by_confidence", "by_entropy", "confident", "mean"):
        assert total(Ensemble(parts, mix)) == pytest.approx(1, abs=1e-4), mix  # type: ignore[arg-type]
    assert total(TextRouter(parts, objective)) > 1.001, "the member of the smallest loss flatters"


@torch.no_grad()
def test_a_masked_row_is_weighed_by_what_can_be_seen() -> None:
    parts, objective = members("roberta")
    batch = batch_of(objective, "encoder")
    asked: list[dict[str, Tensor]] = []

    class Watched(type(parts[0])):  # type: ignore[misc]
        def row_losses(self, text: Any) -> Tensor:
            asked.append(text)
            return super().row_losses(text)

    watched = tuple(Watched(part.model, objective) for part in parts)
    weights = PerplexityEnsemble(watched, objective, 1.0).weights(batch)
    (text,) = {id(text): text for text in asked}.values()
    wanted = batch["labels"] != IGNORE
    for row in range(len(batch["labels"])):
        hidden = set(batch["positions"][row][wanted[row]].tolist())
        tried = text["labels"][row] != IGNORE
        places = text["positions"][row][tried]
        assert 2 <= len(places) <= 5
        assert not hidden & set(places.tolist())
        assert torch.equal(text["labels"][row][tried], batch["input_ids"][row][places])
        assert (text["input_ids"][row][places] == tiny.tokenizer().mask_token_id).all()
        rest = [p for p in range(text["input_ids"].shape[1]) if p not in places.tolist()]
        assert torch.equal(text["input_ids"][row][rest], batch["input_ids"][row][rest])
    nats = torch.stack([part.row_losses(text).double() for part in parts])
    assert weights[..., 0].exp().numpy() == pytest.approx(softmax(nats.numpy(), 1.0), rel=1e-5)
    losses = torch.stack([part.label_losses(batch) for part in parts]).double()
    expected = -torch.log((weights.exp() * torch.exp(-losses)).sum(0))
    found = PerplexityEnsemble(parts, objective, 1.0).label_losses(batch)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_prompt_weighs_its_answer_and_a_text_its_classes() -> None:
    parts, objective = members("llama")
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(5, tiny.VOCABULARY, (n,), generator=generator).tolist() for n in (5, 16, 11)]
    left = torch.tensor([[1] * (16 - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (16 - len(row)) + [1] * len(row) for row in rows])
    inputs = {"input_ids": left, "attention_mask": mask}
    chosen = PerplexityEnsemble(parts, objective, 0.5)
    with torch.no_grad():
        found = chosen.generate(inputs, max_new_tokens=4, stop=())
    for row, answer in zip(rows, found, strict=True):
        nats = [-likely_of(part.model, row)[range(len(row) - 1), row[1:]].mean() for part in parts]
        weights, ids = softmax(np.array(nats), 0.5), list(row)
        for _ in range(4):
            each = np.stack([np.exp(likely_of(part.model, ids)[-1]) for part in parts])
            ids.append(int((weights[:, None] * each).sum(0).argmax()))
        assert ids[len(row) :] == answer

    def tune(model: nn.Module, prepare: Any) -> nn.Module:
        number = next(i for i, part in enumerate(parts) if part.model is model)

        class Constant(nn.Module):
            def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
                logits = torch.zeros(len(input_ids), 3)
                logits[:, number] = 9
                return type("Output", (), {"logits": logits})

        return Constant()

    with torch.no_grad():
        classes = chosen.fine_tuned(tune).class_probabilities(inputs)
    for row, probabilities in zip(rows, classes, strict=True):
        nats = [-likely_of(part.model, row)[range(len(row) - 1), row[1:]].mean() for part in parts]
        each = np.full((3, 3), 1.0) + (np.exp(9) - 1) * np.eye(3)
        by_hand = softmax(np.array(nats), 0.5) @ (each / each.sum(1, keepdims=True))
        assert probabilities.tolist() == pytest.approx(by_hand.tolist(), abs=1e-6)


@pytest.mark.parametrize("architecture", ["gemma2", "t5"])
def test_the_certain_have_more_weight(architecture: str) -> None:
    kind = {"gemma2": "decoder", "t5": "encoder-decoder"}[architecture]
    parts, objective = members(architecture)
    batch = batch_of(objective, kind)
    with torch.no_grad():
        each = np.stack([np.exp(part.likely(batch).numpy()) for part in parts])
        labels = batch["labels"]
        own = np.take_along_axis(each, labels.clamp(min=0).numpy()[None, ..., None], -1)[..., 0]
        best, entropy = each.max(-1), -(each * np.log(each)).sum(-1)
        one_hot = np.arange(3)[:, None, None] == best.argmax(0)
        weights = {
            "by_confidence": best / best.sum(0),
            "by_entropy": np.exp(-entropy) / np.exp(-entropy).sum(0),
            "confident": one_hot,
        }
        for mix, w in weights.items():
            ensemble = Ensemble(parts, mix)  # type: ignore[arg-type]
            expected = np.where(labels == IGNORE, 0, -np.log((w * own).sum(0)))
            assert ensemble.label_losses(batch).numpy() == pytest.approx(expected, abs=1e-6), mix
            everything = np.exp(ensemble.likely(batch).numpy())
            assert everything == pytest.approx((w[..., None] * each).sum(0), abs=1e-9), mix


def test_an_encoder_decoder_is_not_weighed_by_perplexity() -> None:
    parts, objective = members("t5")
    with pytest.raises(ModelError, match="cannot weigh by an encoder-decoder"):
        PerplexityEnsemble(parts, objective).label_losses(batch_of(objective, "encoder-decoder"))


@pytest.mark.parametrize("architecture", ["llama", "t5"])
@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig])
def test_vectors_of_peft_before_a_text_are_read_once(architecture: str, kind: Any) -> None:
    task = "SEQ_2_SEQ_LM" if architecture == "t5" else "CAUSAL_LM"
    plain = tiny.model(architecture).eval()
    ids = torch.arange(5, 14)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    before = Checkpoint(plain, None).generate(inputs, max_new_tokens=6, stop=())
    model: Any = get_peft_model(plain, kind(task_type=task, num_virtual_tokens=3)).eval()
    with torch.no_grad():
        for parameter in model.prompt_encoder.parameters():
            parameter.normal_(0, 3)
    found = Checkpoint(model, None).generate(inputs, max_new_tokens=6, stop=())
    expected = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert found == expected[:, -6:].tolist() != before
