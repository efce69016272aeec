"""GLUE's nine tasks: their files, their scores against other implementations, and a run with them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glue_files
from everlearn.errors import DataError, ModelError, RecipeError
from everlearn.evaluation import METRICS, Cell, build_results, make_task, resample
from everlearn.evaluation.results import RunFacts
from everlearn.evaluation.task import task_config
from everlearn.predictors import Ensemble, Predictor
from everlearn.predictors.weighted_ensemble import PerplexityEnsemble
from everlearn.tasks.fine_tuning import probabilities_after
from everlearn.tasks.glue_formats import FORMATS, GlueTask
from everlearn.tasks.glue_reader import read_glue
from everlearn.tasks.prompts import ChoiceTask


def config(task: str, path: Path | str, **options: Any) -> GlueTask:
    return GlueTask(name=task, task=task, path=str(path), **options)  # type: ignore[arg-type]


# -- files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path: Path) -> Path:
    return glue_files.publish(tmp_path / "GLUE")


EXPECTED = {
    "cola": (("The cat that I fed slept.", None, 1), ("The cat fed that slept I.", None, 0)),
    "sst-2": (('an " unfinished quote ', None, 1), ("a dull film ", None, 0)),
    "mrpc": (
        ('He said the shop " was open .', 'The shop " was open , he said .', 1),
        ("Shares rose 2 % .", "Shares fell .", 0),
    ),
    "sts-b": (("A man rides.", "A man is riding.", 4.75), ('The "old bridge.', "A new shop.", 0.0)),
    "qqp": (("How do I bake bread?", "How is bread baked?", 1), ("Why?", "Who?", 0)),
    "qnli": (("Who built it?", "It was built by Ann.", 0), ("When?", "It is red.", 1)),
    "rte": (("Ann sold her car to Bo.", "Bo has a car.", 0), ("It rained.", "It was dry.", 1)),
    "wnli": (("Ann sold her car to Bo.", "Bo has a car.", 1), ("It rained.", "It was dry.", 0)),
}


@pytest.mark.parametrize("task", EXPECTED)
def test_published_files_are_read(task: str, published: Path) -> None:
    """Quotes are characters, blanks at the ends of SST-2's sentences stay, and labels have the hub's numbers."""
    sets = read_glue(config(task, published))
    for part in (sets.train, sets.test):
        pairs = part.pairs or [None] * len(part)
        assert list(zip(part.texts, pairs, part.labels.tolist(), strict=True)) == list(EXPECTED[task])
        assert part.label_names == list(FORMATS[task].labels)
        assert part.labels.dtype == (np.float64 if task == "sts-b" else np.int64)
    cut = [
        f"End task 'qqp': 1 row of {part}.tsv with another number of cells than its header was left out."
        for part in ("train", "dev")
    ]
    assert sets.notes == (cut if task == "qqp" else [])


def test_mnli_has_two_test_parts(published: Path) -> None:
    sets = read_glue(config("mnli", published))
    assert sets.train.texts == ["It rained train."] * 3
    assert sets.notes == [
        f"End task 'mnli': 1 row of the part 'dev_{part}' without a label was left out."
        for part in ("matched", "mismatched")
    ]
    assert sets.test.texts == ["It rained matched."] * 3 + ["It rained mismatched."] * 3, "without an agreed label"
    assert (sets.test.labels.tolist(), sets.part.tolist()) == ([0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1])
    fewer = read_glue(config("mnli", published, max_test=1))
    assert fewer.part.tolist() == [0, 1], "so many of each part"


def test_mrpc_as_microsoft_publishes_it(tmp_path: Path) -> None:
    """One file, and the list of pairs that GLUE validates on."""
    rows = [f"{number % 2}\t{number}\t{number + 50}\tone {number}\tother {number}" for number in range(6)]
    glue_files.write(tmp_path, "mrpc", "msr_paraphrase_train.txt", f"Quality\t{glue_files.MRPC}", *rows)
    with pytest.raises(DataError, match=r"needs `train\.tsv` and `dev\.tsv`, or `msr_paraphrase_train\.txt` and"):
        read_glue(config("mrpc", tmp_path))
    glue_files.write(tmp_path, "mrpc", "mrpc_dev_ids.tsv", "1\t51", "4\t54")
    sets = read_glue(config("mrpc", tmp_path))
    assert sets.train.texts == ["one 0", "one 2", "one 3", "one 5"]
    assert (sets.test.pairs, sets.test.labels.tolist()) == (["other 1", "other 4"], [1, 0])


@pytest.mark.parametrize("task", FORMATS)
def test_a_copy_of_the_hubs_data_set_gives_the_same(task: str, published: Path, tmp_path: Path) -> None:
    form, files = FORMATS[task], read_glue(config(task, published))
    columns = form.hub_texts or form.texts
    both = [
        [text, *pair]
        for text, *pair in zip(files.test.texts, *([files.test.pairs] if files.test.pairs else []), strict=True)
    ]
    rows = [
        dict(zip(columns, texts, strict=True)) | {"label": label, "idx": number}
        for number, (texts, label) in enumerate(zip(both, files.test.labels.tolist(), strict=True))
    ]
    hidden = dict.fromkeys(columns, "hidden") | {"label": -1 if form.labels else -1.0, "idx": 9}
    splits: dict[str, Any] = {"train": [*rows, hidden]}
    for number, ending in enumerate(form.tests):
        splits[f"validation{ending}"] = [row for row, part in zip(rows, files.part, strict=True) if part == number]
    sets = read_glue(config(task, glue_files.on_hub(tmp_path / "hub", task, splits)))
    assert sets.train.texts == sets.test.texts == files.test.texts, "a row without a label is no example"
    assert sets.test.pairs == files.test.pairs
    np.testing.assert_array_equal(sets.test.labels, files.test.labels)
    np.testing.assert_array_equal(sets.part, files.part)


def test_a_carriage_return_ends_no_row(published: Path) -> None:
    glue_files.write(published, "sst-2", "train.tsv", "sentence\tlabel", "a\rb\t1", "c\t0")
    sets = read_glue(config("sst-2", published))
    assert (sets.train.texts, sets.notes) == (["a\rb", "c"], [])


def test_mrpcs_corpus_without_numbers_of_sentences(tmp_path: Path) -> None:
    glue_files.write(tmp_path, "mrpc", "msr_paraphrase_train.txt", "Quality\t#1 String\t#2 String", "1\ta\tb")
    glue_files.write(tmp_path, "mrpc", "dev_ids.tsv", "1\t2")
    with pytest.raises(DataError, match=r"msr_paraphrase_train\.txt, line 2 has no column '#1 ID'; its columns are"):
        read_glue(config("mrpc", tmp_path))


def test_what_the_files_may_not_hold(published: Path, tmp_path: Path) -> None:
    def refused(task: str, sentence: str, *lines: str) -> None:
        glue_files.write(published, task, "train.tsv", *lines)
        with pytest.raises(DataError, match=sentence):
            read_glue(config(task, published))

    refused("cola", r"train\.tsv, line 1 has the label '2'; those of CoLA are unacceptable, acceptable", "a\t2\t\tb")
    refused(
        "sts-b",
        "the label 'high'; those of STS-B are values from 0 to 5",
        f"{glue_files.STSB}\tscore",
        "0" + "\tx" * 8 + "\thigh",
    )
    refused("sts-b", "the label '5.1'", f"{glue_files.STSB}\tscore", "0" + "\tx" * 8 + "\t5.1")
    refused("rte", "no column 'label'; its columns are 'index', 'sentence1'", "index\tsentence1\tsentence2", "0\ta\tb")
    refused(
        "rte", "the part 'train' in .* has no example with a label", "index\tsentence1\tsentence2\tlabel", "0\ta\tb\t-1"
    )
    refused("sst-2", "every training example has the label 'positive'; two", "sentence\tlabel", "a\t1", "b\t-1")
    (published / "WNLI" / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"'.*WNLI' has no `dev\.tsv`, which GLUE's WNLI has"):
        read_glue(config("wnli", published))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"neither GLUE's folder `QNLI` nor the Parquet files of a data set"):
        read_glue(config("qnli", tmp_path / "empty"))
    with pytest.raises(DataError, match=r"cannot be reached.*or set `path` to the folder with GLUE's published files"):
        read_glue(config("qnli", "nyu-mll/glue"))
    with pytest.raises(RecipeError, match=r"`end_tasks\.0\.task` .* must be 'cola', 'sst-2'"):
        task_config({"kind": "glue", "name": "x", "task": "sst2", "path": "y"}, "end_tasks.0")


# -- scores -------------------------------------------------------------------------------------------------------


def labels(truth: Any, predictions: Any, scores: tuple[str, ...], classes: int = 2, **given: Any) -> Cell:
    facts = {"scores": list(scores), "classes": list(range(classes)), "positive": 1}
    return Cell(
        "glue", "t", "base", {"predictions": np.atleast_2d(predictions)}, {"truth": np.asarray(truth), **given}, facts,
        tuple(range(len(np.atleast_2d(predictions)))),
    )  # fmt: skip


def values(target: Any, predicted: Any) -> Cell:
    outcomes, own = {"values": np.atleast_2d(np.asarray(predicted, float))}, {"target": np.asarray(target, float)}
    return Cell(
        "glue", "t", "base", outcomes, own, {"scores": ["pearson", "spearman"]}, tuple(range(len(outcomes["values"])))
    )


def options(right: Any, chosen: Any, scores: tuple[str, ...], count: int, **facts: Any) -> Cell:
    nats = 1.0 - np.eye(count)[:, np.asarray(chosen)]
    return Cell(
        "choice",
        "t",
        "base",
        {"option_nats": nats},
        {"right_option": np.asarray(right)},
        {"scores": list(scores), **facts},
    )


def of(name: str, cell: Cell) -> float:
    return METRICS[name].score(cell)


PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40)


@settings(max_examples=100, deadline=None)
@given(PAIRS)
def test_matthews_is_the_correlation_of_indicators(pairs: list[tuple[int, int]]) -> None:
    """R_K is the sum of the covariances of each class's indicators, by the square root of their variances' sums."""
    truth, predicted = np.array(pairs).T
    one, other = (each[:, None] == np.arange(4) for each in (truth, predicted))
    centred = [each - each.mean(0) for each in (one, other)]
    spread = np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum())
    expected = (centred[0] * centred[1]).sum() / spread if spread > 1e-9 else 0.0
    assert of("matthews", labels(truth, predicted, ("matthews",), 4)) == pytest.approx(expected, abs=1e-9)


def test_matthews_of_two_classes_is_scipys_correlation() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 2, (2, 200))
    expected = scipy.stats.pearsonr(truth, predicted).statistic
    for cell in (labels(truth, predicted, ("matthews",)), options(truth, predicted, ("matthews",), 2)):
        assert of("matthews", cell) == pytest.approx(expected, abs=1e-12)
        assert of("glue_score", cell) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30))
def test_f1_of_the_positive_class(pairs: list[tuple[int, int]]) -> None:
    truth, predicted = zip(*pairs, strict=True)
    hits = sum(t and p for t, p in pairs)
    precision, recall = hits / max(sum(predicted), 1), hits / max(sum(truth), 1)
    expected = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    cell = labels(truth, predicted, ("accuracy", "positive_f1"))
    assert of("positive_f1", cell) == pytest.approx(expected, abs=1e-12)
    accuracy = np.mean(np.array(truth) == predicted)
    assert of("accuracy", cell) == pytest.approx(accuracy)
    assert of("glue_score", cell) == pytest.approx((accuracy + expected) / 2)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.floats(-3, 8, width=16)), min_size=3, max_size=40))
def test_correlations_are_scipys(pairs: list[tuple[int, float]]) -> None:
    """With ties, and undefined where either side is constant."""
    target, predicted = np.array(pairs, float).T
    cell = values(target, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant input
        for name, reference in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
            np.testing.assert_allclose(of(name, cell), reference(target, predicted).statistic, atol=1e-9)


def test_one_prediction_for_everything() -> None:
    """Matthews' is then 0, as scikit-learn has it; a correlation is undefined, so nothing is reported for it."""
    truth = np.array([0, 1, 1, 1, 0, 1])
    assert of("matthews", labels(truth, np.ones(6, int), ("matthews",))) == 0
    assert of("matthews", labels(np.ones(6, int), truth, ("matthews",))) == 0
    assert of("positive_f1", labels(truth, np.zeros(6, int), ("positive_f1",))) == 0
    constant = values([0, 1, 2, 3, 4, 5], np.full(6, 0.1 + 0.2))
    assert all(np.isnan(of(name, constant)) for name in ("pearson", "spearman"))
    assert of("glue_score", constant) == 0, "a mean over tasks must not be better without the task"
    better = values([0, 1, 2, 3, 4, 5], [0, 1, 2, 4, 3, 5])
    facts = RunFacts(run="x", seed=0, methods=[], model="m", objective="masked")
    results = build_results(facts, ["d"], tasks={(0, "t"): constant, (1, "t"): better}, task_domains={"t": "d"})
    for name in ("glue_score", "pearson", "spearman"):
        before, after = results.matrices[name].values
        assert before == ([0] if name == "glue_score" else [None])
        assert after[0] is not None
        assert after[0] > 0.9
    sentence = (
        "all examples got the same answer, for which there is no Pearson correlation and no Spearman correlation. "
        "The mean of the task's metrics counts them as 0."
    )
    assert f"End task 't' at 'base': {sentence}" in results.notes


def test_scores_lead_with_the_mean_and_apply_where_they_are_named() -> None:
    cell = labels([0, 1, 1], [0, 1, 0], ("matthews",))
    names = [metric.name for metric in METRICS.values() if metric.applies(cell)]
    assert names == ["glue_score", "accuracy", "macro_f1", "f1", "matthews"]
    part = np.array([0, 0, 0, 1])
    mnli = labels([0, 1, 2, 2], [0, 1, 0, 2], FORMATS["mnli"].scores, 3, mismatched=part)
    assert [of(name, mnli) for name in FORMATS["mnli"].scores] == pytest.approx([2 / 3, 1])
    assert of("glue_score", mnli) == pytest.approx(5 / 6), "the mean of both parts, not of all examples"


def test_options_that_stand_for_values() -> None:
    scale = [0.0, 2.5, 5.0]
    cell = options([0, 1, 2, 2], [0, 2, 2, 1], ("pearson", "spearman"), 3, values=scale)
    target, chosen = [0, 2.5, 5, 5], [0, 5, 5, 2.5]
    assert of("pearson", cell) == pytest.approx(scipy.stats.pearsonr(target, chosen).statistic)
    assert of("spearman", cell) == pytest.approx(scipy.stats.spearmanr(target, chosen).statistic)


def test_a_choice_may_name_these_scores(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text(
        "".join(json.dumps({"q": "?", "a": each}) + "\n" for each in ("0.0", "2.5", "5.0")), encoding="utf-8"
    )
    options = {"name": "t", "test": str(file), "prompt": "{q}", "answer_column": "a", "choices": ("0.0", "2.5", "5.0")}
    task: Any = make_task(ChoiceTask(**options, scores=("accuracy", "positive_f1", "spearman")))  # type: ignore[arg-type]
    cell = task.always("5.0")
    assert cell.facts == {"scores": ["accuracy", "positive_f1", "spearman"], "positive": 2, "values": [0.0, 2.5, 5.0]}
    assert of("positive_f1", cell) == pytest.approx(0.5), "of the last choice: one hit, two misses"
    plain = ChoiceTask(**options)  # type: ignore[arg-type]
    assert make_task(plain).always("5.0").facts == {}  # type: ignore[attr-defined]
    assert "scores" not in plain.marks, "so that scores of earlier versions are of the same task"
    with pytest.raises(ValueError, match="`scores` need `choices`"):
        ChoiceTask(name="t", test="x", scores=("matthews",))
    with pytest.raises(ValueError, match="`scores` with a correlation need numbers"):
        ChoiceTask(name="t", test="x", choices=("a", "1"), scores=("pearson",))


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman", "positive_f1", "glue_score"])
def test_a_bootstrap_sample_is_the_score_of_the_examples_drawn(name: str) -> None:
    """Against the metric of a cell that holds these examples; Spearman's keeps the ranks of all examples."""
    rng = np.random.default_rng(1)
    truth, predicted = rng.integers(0, 2, (2, 12))
    cell = (
        values(truth + rng.normal(size=12), predicted + rng.normal(size=12))
        if name in ("pearson", "spearman")
        else (labels(truth, predicted, ("matthews", "positive_f1")))
    )
    metric, often = METRICS[name], rng.multinomial(12, [1 / 12] * 12)
    drawn = np.repeat(np.arange(12), often)
    sample = float(metric.value((metric.terms(cell) * often).sum(-1), cell)[0])
    if name == "spearman":
        ranks = [scipy.stats.rankdata(each) for each in (cell["target"], cell["values"][0])]
        expected = scipy.stats.pearsonr(*(each[drawn] for each in ranks)).statistic
    else:
        chosen = {key: array[..., drawn] for key, array in {**cell.given, **cell.outcomes}.items()}
        expected = of(
            name,
            Cell(
                "glue",
                "t",
                "base",
                {k: chosen[k] for k in cell.outcomes},
                {k: chosen[k] for k in cell.given},
                cell.facts,
            ),
        )
    assert sample == pytest.approx(expected)
    samples = resample([cell], [metric], seed=0, resamples=200)[name]
    assert samples.values[0] == pytest.approx(of(name, cell))
    assert np.std(samples.samples) > 0


# -- models -------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(make_model: Any, tmp_path: Path) -> Path:
    make_model("roberta").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "t5"])
def test_values_are_learnt(architecture: str, make_model: Any, tokenizer: Any, tmp_path: Path) -> None:
    task = config(
        "sts-b", glue_files.learnable(tmp_path, "sts-b"), epochs=40, learning_rate=1e-2, batch_size=8, max_length=32
    )
    train, test, _, _ = read_glue(task)
    make_model(architecture).save_pretrained(tmp_path / "model")
    found = probabilities_after(tmp_path / "model", tokenizer, task, train, test, 120, seed=0)
    assert found.shape == (12, 1)
    assert np.mean((found[:, 0] - test.labels) ** 2) < np.var(test.labels) / 4
    again = probabilities_after(tmp_path / "model", tokenizer, task, train, test, 120, seed=0)
    np.testing.assert_array_equal(found, again)


def test_the_loss_is_the_mean_squared_error(
    model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    real = torch.nn.functional.mse_loss
    monkeypatch.setattr(
        torch.nn.functional, "mse_loss", lambda a, b: seen.append(float(((a - b) ** 2).mean().detach())) or real(a, b)
    )
    task = config("sts-b", glue_files.learnable(tmp_path, "sts-b"), batch_size=24, max_length=32)
    train, test, _, _ = read_glue(task)
    probabilities_after(model, tokenizer, task, train, test, 1, seed=0)
    assert seen[0] == pytest.approx(np.mean(train.labels**2), rel=0.3), "a fresh head predicts values near 0"


def test_ensembles_average_values() -> None:
    class Says(Predictor):
        def __init__(self, value: float) -> None:
            self.value = value

        def values(self, inputs: Any) -> torch.Tensor:
            return torch.full((2, 1), self.value, dtype=torch.float64)

    class Weighted(PerplexityEnsemble):
        def weights(self, batch: Any, known: Any = None) -> torch.Tensor:
            return torch.tensor([0.25, 0.75], dtype=torch.float64).log()[:, None, None]

    members: Any = (Says(1.0), Says(4.0))
    assert Ensemble(members, "geometric").values({}).tolist() == [[2.5], [2.5]]
    assert Weighted(members, None).values({}).flatten().tolist() == pytest.approx([3.25, 3.25])  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="predicts no values"):
        Predictor().values({})


def test_a_fingerprint_is_of_examples_and_options(published: Path) -> None:
    one = make_task(config("rte", published))
    assert one.fingerprint() == make_task(config("rte", published)).fingerprint()
    assert one.fingerprint() != make_task(config("rte", published, epochs=1)).fingerprint()
    glue_files.write(published, "rte", "dev.tsv", "index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment")
    assert one.fingerprint() != make_task(config("rte", published)).fingerprint()
