"""Tasks whose examples are drawn from their sets on the Hugging Face hub, here tiny copies in a data folder."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

import continual_tasks as small
from bench_suite import keys_of
from everlearn.errors import DataError
from everlearn_bench.suites import find_suite
from everlearn_bench.suites.cache import read_lines
from everlearn_bench.suites.continual_tasks import TASKS, VARIABLE, files, task_file
from everlearn_bench.suites.continual_tasks.drawn import ON_HUB, drawn
from everlearn_bench.suites.continual_tasks.hub import SETS

LONG = find_suite("long-sequence")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published sizes of 20 and 6."""
    for name, task in TASKS.items():
        monkeypatch.setitem(TASKS, name, type(task)(**vars(task) | {"train": 20, "test": 6}))


def invented(count: int, fields: Sequence[str], classes: int, part: str = "", label: str = "label") -> list[Any]:
    """Rows that differ, with labels in turn; of no class where there is none."""
    return [{key: f"{key} {part}{i}" for key in fields} | {label: i % classes if classes else -1} for i in range(count)]


def read(name: str, data: Path, seed: int = 0) -> list[list[dict[str, str]]]:
    return [json.loads(file.read_text()) for file in drawn(name, data, seed)]


def test_every_task_has_a_set() -> None:
    """With the fields that its text needs; every label that is called otherwise there is one of the task's."""
    assert set(SETS) == set(LONG.domains)
    for name, place in SETS.items():
        assert [key for _, key, _, _ in string.Formatter().parse(place.text) if key]
        assert set(place.labels.values()) <= set(TASKS[name].labels), name
        assert place.test == "test" or place.path in ("nyu-mll/glue", "aps/super_glue")


@pytest.mark.usefixtures("few")
def test_a_pair_task_whose_test_part_has_no_labels(tmp_path: Path) -> None:
    """The part for validation is tested; labels go by their names, whatever their numbers are."""
    fields, names = ("sentence1", "sentence2"), ["not_entailment", "entailment"]
    parts = {part: invented(40, fields, 2, part) for part in ("train", "validation")}
    small.on_hub(tmp_path, "rte", parts | {"test": invented(9, fields, 0, "test")}, names)
    train, test = read("rte", tmp_path)
    assert [len(train), len(test)] == [20, 6]
    for part, rows in (("train", train), ("validation", test)):
        for row in rows:
            number = int(row["sentence"].rsplit(part)[-1])
            assert row["sentence"] == f"sentence 1: sentence1 {part}{number}\nsentence 2: sentence2 {part}{number}"
            assert row["label"] == ("entailment" if number % 2 else "contradiction")
    parted = {part: list(read_lines(task_file("rte", part, tmp_path))) for part in files.PARTS}
    assert {part: len(rows) for part, rows in parted.items()} == {"train": 18, "dev": 2, "test": 6}
    assert parted["test"][0]["prompt"].startswith("Task:NLI\nDataset:RTE\n")
    assert {row["answer"] for row in parted["train"]} == {"entailment", "contradiction"}


@pytest.mark.usefixtures("few")
def test_the_draw_depends_on_its_seed_alone(tmp_path: Path) -> None:
    parts = {part: invented(60, ("text",), 2, part) for part in ("train", "test")}
    for folder in ("one", "other"):
        small.on_hub(tmp_path / folder, "imdb", parts, ["neg", "pos"])
    one = read("imdb", tmp_path / "one")
    assert read("imdb", tmp_path / "other") == one
    assert read("imdb", tmp_path / "one", seed=1) != one
    texts = [[row["sentence"] for row in rows] for rows in one]
    assert [len(set(rows)) for rows in texts] == [20, 6]
    assert texts[0] != sorted(texts[0], key=lambda text: int(text.removeprefix("text train"))), "not the first ones"


@pytest.mark.usefixtures("few")
def test_texts_have_the_published_form(tmp_path: Path) -> None:
    def only(name: str, row: dict[str, Any], names: Sequence[str] | None = None) -> tuple[str, str]:
        small.on_hub(tmp_path, name, {"train": [row], SETS[name].test: [row]}, names)
        ((found,), _) = read(name, tmp_path)
        return found["sentence"], found["label"]

    row: dict[str, Any] = {"premise": "It {rained}.", "choice1": "I got wet.", "choice2": "I slept.", "label": 1}
    assert only("copa", row | {"question": "effect"}, ["choice1", "choice2"]) == (
        'Which sentence is the effect of "It {rained}."? Choose one between A and B.\nA: I got wet.\nB: I slept.', "B",
    )  # fmt: skip
    row = {"paragraph": "p", "question": "q", "answer": "a", "idx": {"paragraph": 0, "answer": 1}, "label": 1}
    assert only("multirc", row, ["False", "True"]) == ("paragraph: p\nquestion: q\ncandidate answer: a", "True")
    row = {"word": "go", "sentence1": "Go.", "sentence2": "I go.", "start1": 0, "label": 0}
    assert only("wic", row, ["False", "True"]) == ("word: go\nGo.\nI go.", "False")
    row = {"title": "T", "content": " T is.", "label": 1}
    assert only("dbpedia", row, ["Film", "WrittenWork"]) == ("Title: T\nText:  T is.\n", "Written Work")
    row = {"class_index": 2, "review_title": None, "review_text": "Bad."}
    assert only("amazon", row) == ("Title: \nText: Bad.\n", "negative")
    row = {"topic": 0, "question_title": "T?", "question_content": "c", "best_answer": "a"}
    assert only("yahoo", row, ["Family & Relationships"]) == ("Title: T?\nText: c a\n", "Family & Relationships")


@pytest.mark.usefixtures("few")
def test_what_a_set_may_not_hold(tmp_path: Path) -> None:
    rows = invented(3, ("text",), 2)
    small.on_hub(tmp_path / "label", "agnews", {"train": rows, "test": rows}, ["World", "Weather"])
    with pytest.raises(
        DataError, match=r"'fancyzhx/ag_news' has the label 'Weather', but those of agnews are World, S"
    ):
        drawn("agnews", tmp_path / "label")
    # Numbers without names would have to be trusted.
    small.on_hub(tmp_path / "number", "agnews", {"train": rows, "test": rows})
    with pytest.raises(DataError, match=r"has the label '[01]', but those of agnews are"):
        drawn("agnews", tmp_path / "number")
    rows = invented(3, ("premise",), 2)
    small.on_hub(tmp_path / "field", "cb", {"train": rows, "validation": rows}, ["entailment", "neutral"])
    with pytest.raises(DataError, match=r"'aps/super_glue' \(cb\) has no field 'hypothesis'; its fields are 'premise'"):
        drawn("cb", tmp_path / "field")
    rows = invented(3, ("text",), 0)
    small.on_hub(tmp_path / "none", "imdb", {"train": rows, "test": rows}, ["neg", "pos"])
    with pytest.raises(
        DataError, match=r"part 'train' of the hub's set 'stanfordnlp/imdb' has no example with a label"
    ):
        drawn("imdb", tmp_path / "none")
    assert drawn("subj", ON_HUB) == drawn("cb", tmp_path) == ()


def test_without_network_the_sentence_says_what_to_do() -> None:
    with pytest.raises(DataError, match=r"'aps/super_glue' cannot be reached.*`hub/<owner>/<name>`.*`--data fetch`"):
        task_file("cb", "train", files.data_folder("hub"))


@pytest.mark.usefixtures("few")
def test_proxies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the published files come before what is drawn."""
    rows = invented(8, ("premise", "hypothesis"), 2)
    small.on_hub(tmp_path, "cb", {"train": rows, "validation": rows[:2]}, ["entailment", "neutral"])
    small.publish(tmp_path, "copa")
    small.on_hub(tmp_path, "copa", {"train": rows}, ["choice1", "choice2"])
    made = keys_of(LONG, ("cb", "copa"), tmp_path)
    assert made["run"]["notes"][:-1] == [
        "Proxy task 'cb': drawn from the hub's set 'aps/super_glue' (cb), not the published examples."
    ]
    monkeypatch.setenv(VARIABLE, "hub")
    assert files.data_folder() == files.data_folder("hub") == ON_HUB
    assert all(files.proxy(name, ON_HUB).startswith("drawn from the hub's set") for name in LONG.domains)
