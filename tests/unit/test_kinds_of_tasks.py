"""Kinds of tasks and their metrics, known wherever scores are read; fine-tuning on end tasks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import everlearn.tasks  # noqa: F401
import prepared
import tiny
from everlearn.errors import DataError, ModelError, TrainingDiverged
from everlearn.evaluation.metrics import METRICS
from everlearn.tasks import fine_tuning
from everlearn.tasks.fine_tuning import evaluate_task, fine_tune, grouped_batches, steps_of
from everlearn.tasks.labelled import EndTask, LabelledSet


@pytest.mark.parametrize(
    "module", ["everlearn.comparison.shared_examples", "everlearn.run.collect_results", "everlearn.config.recipe"]
)
def test_who_reads_scores_knows_every_kind(module: str) -> None:
    """The registries fill when `everlearn.tasks` is imported, which `everlearn.evaluation` cannot do."""
    code = (
        f"import {module}\n"
        "from everlearn.evaluation.metrics import METRICS\n"
        "from everlearn.evaluation.task import TASK_KINDS\n"
        "assert {'rouge_l', 'normalised', 'codelength', 'chats', 'pass_at_1'} <= set(METRICS), list(METRICS)\n"
        "assert {'text', 'choice', 'big-bench', 'lm_eval', 'code', 'samples'} <= set(TASK_KINDS), list(TASK_KINDS)\n"
    )
    done = prepared.run(code)
    assert done.returncode == 0, done.stderr


def test_the_score_that_a_task_prefers_leads() -> None:
    """Of the metrics that a cell has the first one leads: a task of BIG-bench shows its normalised score."""
    order = list(METRICS)
    assert order.index("normalised") < order.index("multiple_choice_grade") < order.index("exact_match")
    assert (
        order.index("choice_accuracy") < order.index("exact_match") < order.index("token_f1") < order.index("rouge_l")
    )


def toy(count, seed, names=("axes", "matrix"), pairs=False):
    """The label is the word that the text (or its pair) repeats."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(names), count)
    said = [" ".join([names[label]] * int(rng.integers(3, 12))) for label in labels]
    other = ["the model"] * count
    return LabelledSet(other if pairs else said, said if pairs else None, labels, list(names))


def task(**changes):
    options = {"epochs": 4, "learning_rate": 3e-3, "batch_size": 8, "max_length": 32, **changes}
    return EndTask(name="toy", train="x", test="y", **options)


TRAIN, TEST = toy(48, 0), toy(30, 1)


@pytest.fixture
def folder(make_model, tmp_path):
    make_model("roberta", dropout=0.1).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def tune(model, tokenizer, task_=None, train=TRAIN, test=TEST, seed=0, **options):
    return fine_tune(model, tokenizer, task_ or task(), train, test, seed=seed, **options)


@pytest.mark.parametrize("architecture", ["roberta", "bert", "gpt2", "llama", "t5"])
def test_learns_a_separable_task(architecture, make_model, tokenizer, tmp_path):
    make_model(architecture).save_pretrained(tmp_path)
    predictions = tune(tmp_path, tokenizer, task(epochs=8))
    assert predictions.dtype == np.int64
    assert np.mean(TEST.labels == predictions) > 0.9


def test_reproducible_bit_for_bit_and_seeds_differ(folder, tokenizer):
    # One step from a random head: predictions of an untrained model depend on everything that is random.
    short = task(epochs=1, learning_rate=1e-5, batch_size=48)
    three = toy(30, 1, names=("axes", "matrix", "test"))
    runs = []
    for seed in (0, 0, 1, 2, 3):
        torch.rand(3)  # what ran before does not matter
        runs.append(tune(folder, tokenizer, short, toy(48, 0, ("axes", "matrix", "test")), three, seed=seed).tolist())
    assert runs[0] == runs[1]
    assert any(run != runs[0] for run in runs[2:])


def test_trained_weights_are_reproducible(folder, tokenizer, monkeypatch):
    trained = []

    def remember(predictor, *rest):
        trained.append({name: value.clone() for name, value in predictor.model.state_dict().items()})
        return np.zeros(len(TEST), np.int64)

    monkeypatch.setattr(fine_tuning, "_predict", remember)
    for seed in (0, 0, 1):
        tune(folder, tokenizer, seed=seed)
    first, second, other = trained
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["classifier.out_proj.weight"], other["classifier.out_proj.weight"])


def test_global_randomness_and_a_given_model_are_left_alone(make_model, tokenizer, folder):
    model = make_model("roberta", dropout=0.1)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    from_object = tune(model, tokenizer)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    np.testing.assert_array_equal(from_object, tune(folder, tokenizer))


def test_several_seeds_and_progress(folder, tokenizer):
    seen = []
    cell = evaluate_task(folder, tokenizer, task(epochs=0.5), TRAIN, TEST, [5, 7], progress=seen.append)
    assert steps_of(task(epochs=0.5), TRAIN) == 3
    assert seen == [1, 2, 3, 4, 5, 6]
    assert cell["predictions"].shape == (2, 30)
    assert cell.seeds == (5, 7)
    assert cell.facts["classes"] == [0, 1]
    np.testing.assert_array_equal(cell["truth"], TEST.labels)


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_pairs(architecture, make_model, tokenizer, tmp_path):
    make_model(architecture).save_pretrained(tmp_path)
    train, test = toy(48, 0, pairs=True), toy(30, 1, pairs=True)
    assert np.mean(test.labels == tune(tmp_path, tokenizer, task(epochs=8), train, test)) > 0.9


def test_long_texts_are_cut_to_the_models_positions(make_model, tokenizer, tmp_path):
    make_model("roberta", max_position_embeddings=18).save_pretrained(tmp_path)
    long = LabelledSet(["axes " * 200] * 8, None, np.arange(8) % 2, ["a", "b"])
    unlimited = copy.deepcopy(tokenizer)
    unlimited.model_max_length = 10**30
    tune(tmp_path, unlimited, task(epochs=1, max_length=512), long, long)


def test_padding_does_not_change_predictions(folder, tokenizer):
    texts = LabelledSet(
        ["axes", "matrix " * 20, "", "matrix", "axes " * 20], None, np.zeros(5, int), ["axes", "matrix"]
    )
    short = task(epochs=1)
    together = tune(folder, tokenizer, short, test=texts)
    for i, text in enumerate(texts.texts):
        one = LabelledSet([text], None, np.zeros(1, int), texts.label_names)
        assert tune(folder, tokenizer, short, test=one)[0] == together[i]


def test_a_decoder_without_a_padding_token_uses_its_end_token(make_model, tokenizer, tmp_path):
    make_model("gpt2", pad_token_id=None).save_pretrained(tmp_path)
    bare = copy.deepcopy(tokenizer)
    bare.pad_token = None
    assert len(tune(tmp_path, bare, task(epochs=1))) == 30
    assert bare.pad_token is None
    bare.eos_token = None
    with pytest.raises(ModelError, match="padding or end-of-text"):
        tune(tmp_path, bare)


def test_bf16(folder, tokenizer):
    assert np.mean(TEST.labels == tune(folder, tokenizer, task(epochs=8), bf16=True)) > 0.9


def test_divergence_is_said(folder, tokenizer):
    with pytest.raises(TrainingDiverged, match="'toy'"):
        tune(folder, tokenizer, task(learning_rate=1e30))


def test_what_cannot_be_loaded_is_said(tokenizer, tmp_path):
    with pytest.raises(ModelError, match="cannot be loaded for end task 'toy'"):
        tune(tmp_path / "nothing", tokenizer)


def test_an_architecture_without_a_classifier_is_refused(tokenizer, tmp_path):
    from transformers import LongT5Config, LongT5ForConditionalGeneration

    config = LongT5Config(vocab_size=tiny.VOCABULARY, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    LongT5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"'longt5'.*no classification head"):
        tune(tmp_path, tokenizer)


def test_an_end_token_inside_a_text_is_named_for_encoder_decoders(make_model, tokenizer, tmp_path):
    make_model("t5").save_pretrained(tmp_path)
    odd = LabelledSet(["axes", "food </s> axes"] * 4, None, np.arange(8) % 2, ["a", "b"])
    with pytest.raises(DataError, match="Example 2 of the train set of end task 'toy'"):
        tune(tmp_path, tokenizer, task(epochs=1), odd)


def test_batches_hold_every_row_once_and_group_lengths():
    lengths = np.random.default_rng(0).integers(1, 200, 1003).tolist()
    batches = grouped_batches(lengths, 16, seed=0, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1003))
    assert len(batches) == 63
    padded = sum(len(b) * max(lengths[i] for i in b) for b in batches)
    assert padded < 1.1 * sum(lengths)
    again = grouped_batches(lengths, 16, seed=0, epoch=0)
    assert all((a == b).all() for a, b in zip(batches, again, strict=True))
    assert any(a.tolist() != b.tolist() for a, b in zip(batches, grouped_batches(lengths, 16, 0, 1), strict=True))
    assert any(a.tolist() != b.tolist() for a, b in zip(batches, grouped_batches(lengths, 16, 1, 0), strict=True))
