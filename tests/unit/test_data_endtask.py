from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from pydantic import ValidationError

from everlearn.errors import DataError
from everlearn.tasks.labelled import EndTask, check_test_apart, notes_on, read_end_task

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "tasks"


def write(path: Path, rows: list[dict]) -> str:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return str(path)


def task(folder: Path, train: list[dict], test: list[dict], **options) -> EndTask:
    parts = {"train": write(folder / "train.jsonl.gz", train), "test": write(folder / "test.jsonl.gz", test)}
    return EndTask(name="t", **parts, **options)


def row(label, text: str = "x") -> dict:
    return {"text": text, "label": label}


def test_texts_pairs_and_words_as_labels(tmp_path):
    rows = [{"text": f"t{i}", "aspect": f"a{i}", "polarity": label} for i, label in enumerate(["pos", "neg", "pos"])]
    train, test = read_end_task(task(tmp_path, rows, rows[1:], text_pair_column="aspect", label_column="polarity"))
    assert train.texts == ["t0", "t1", "t2"]
    assert train.pairs == ["a0", "a1", "a2"]
    assert train.label_names == test.label_names == ["neg", "pos"]
    assert train.labels.tolist() == [1, 0, 1]
    assert test.labels.tolist() == [0, 1]
    assert len(test) == 2


def test_whole_numbers_are_sorted_by_value_in_every_format(tmp_path):
    labels = [10, 9, 2, 10]
    expected = ["2", "9", "10"]
    train, _ = read_end_task(task(tmp_path, [row(label) for label in labels], [row(2)]))
    assert train.label_names == expected
    assert train.pairs is None
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"x,{label}\n" for label in labels))
    parquet.write_table(pyarrow.table({"text": ["x"] * 4, "label": [float(x) for x in labels]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        path = str(tmp_path / name)
        train, test = read_end_task(EndTask(name="t", train=path, test=path))
        assert (train.label_names, test.labels.tolist()) == (expected, [2, 1, 0, 2])


def test_max_train_draws_the_same_examples_each_time(tmp_path):
    rows = [row(i % 2, str(i)) for i in range(100)]
    few = task(tmp_path, rows, rows, max_train=10)
    train, test = read_end_task(few)
    assert len(train) == 10
    assert len(test) == 100
    assert train.texts == read_end_task(few)[0].texts
    assert train.texts != [str(i) for i in range(10)]


def test_max_test_draws_other_examples_than_max_train(tmp_path):
    rows = [row(i % 2, str(i)) for i in range(100)]
    few = task(tmp_path, rows, rows, max_train=10, max_test=10)
    train, test = read_end_task(few)
    assert (len(train), len(test)) == (10, 10)
    assert test.texts == read_end_task(few)[1].texts
    assert test.texts != train.texts
    assert test.texts == sorted(test.texts, key=int)


def test_labels_without_training_examples_may_count_as_wrong(tmp_path):
    rows, seen = [row("x"), row("b"), row("a")], [row("x"), row("a")]
    with pytest.raises(DataError, match="`unseen_labels: wrong`"):
        read_end_task(task(tmp_path, seen, rows))
    train, test = read_end_task(task(tmp_path, seen, rows, unseen_labels="wrong"))
    assert train.label_names == ["a", "x"]
    assert train.labels.tolist() == [1, 0]
    assert test.label_names == ["a", "x", "b"]
    assert test.labels.tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ([row("a"), row("b")], [row("c"), row("a")], "labels that the training part lacks: c"),
        ([row("a"), row("a")], [row("a")], "every training example has the label 'a'"),
        ([], [row("a")], r"`train: .*train.jsonl.gz` is empty"),
        ([row("a"), row("b")], [], "`test: .* is empty"),
        ([row(0.5)], [row(1)], "line 1: column 'label' must hold a word or a whole number; it holds 0.5"),
        ([row(None)], [row(1)], "it holds None"),
        ([row("")], [row(1)], "it holds ''"),
        ([row(1, 7)], [row(1)], "'text' must hold text; it holds int"),  # type: ignore[arg-type]
        ([{"text": "x", "labels": 1}], [row(1)], "no column 'label'; its columns are 'text', 'labels'"),
    ],
)
def test_bad_labels_raise_a_sentence(tmp_path, train, test, words):
    with pytest.raises(DataError, match=words):
        read_end_task(task(tmp_path, train, test))


def test_missing_files_name_their_key(tmp_path):
    path = write(tmp_path / "train.jsonl.gz", [row(1), row(2)])
    with pytest.raises(
        DataError, match=r"`test: .*tran.jsonl.gz`: there is no such file.*Did you mean 'train.jsonl.gz'"
    ):
        read_end_task(EndTask(name="t", train=path, test=str(tmp_path / "tran.jsonl.gz")))


def test_options_are_strict():
    for options in ({"name": "a b"}, {"name": "a", "epoch": 3}, {"name": "a", "epochs": 0}):
        with pytest.raises(ValidationError):
            EndTask(train="a", test="b", **options)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the benchmark data is not here")
def test_a_published_task_is_read():
    folder = SHARED / "scierc_relation"
    train, test = read_end_task(
        EndTask(name="scierc", train=str(folder / "train.jsonl.gz"), test=str(folder / "test.jsonl.gz"))
    )
    assert len(train.label_names) == 7
    assert len(test) == 974


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["Pos", "POS", "pos ", "neg"], ["'POS', 'Pos', 'pos '", "3 classes"]),
        (["a  b", "a b"], ["2 classes"]),
        (["\u00e9", "e\u0301"], ["2 classes"]),
        (["1", "1.0", "2"], ["'1', '1.0'"]),
        ([f"{i / 120}" for i in range(1, 120)], ["quantities", "119 classes"]),
        (["0.5", "1", "2"], ["quantities", "'0.5'"]),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path, labels, words):
    rows = [row(label, f"x{number}") for number, label in enumerate(labels)]
    with pytest.raises(DataError) as caught:
        read_end_task(task(tmp_path, rows, rows[:1]))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("labels", [["1.0", "2.0"], ["-1", "1"], ["4.5 stars", "5 stars"], ["v1.2", "0.5"], ["A", "B"]])
def test_labels_that_look_a_little_like_numbers_are_classes(tmp_path, labels):
    rows = [row(label, label) for label in labels]
    assert len(read_end_task(task(tmp_path, rows, rows[:1]))[0].label_names) == 2


def test_testing_on_the_training_part_is_refused_and_on_some_of_it_noted(tmp_path):
    rows = [row(str(i % 2), f"text {i}") for i in range(10)]
    same = task(tmp_path, rows, rows)
    with pytest.raises(DataError, match=r"tested on its training examples: .*test\.jsonl\.gz is the same file as"):
        check_test_apart(same)
    with pytest.raises(DataError, match="is in both"):
        check_test_apart(same.model_copy(update={"test": same.train}))
    some = task(tmp_path, rows, [*rows[:3], *(row("0", f"other {i}") for i in range(5))])
    check_test_apart(some)
    assert notes_on("t", *read_end_task(some)) == [
        "3 of the 8 test examples of 't' also occur in its training part (38 %)."
    ]
    names = task(tmp_path, [row(f"name {i}", f"text {i}") for i in range(9)], [row("name 1", "z")])
    assert notes_on("t", *read_end_task(names)) == [
        "9 of the 9 labels of 't' have only one training example: are these classes?"
    ]
