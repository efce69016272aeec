"""What is measured on and learnt: found by one check, in identical and nearly identical text, and nowhere else."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from test_survey import texts, words, write

import tiny
from everlearn.data import leaks
from everlearn.data.corpus import Domain
from everlearn.data.leaks import check_leaks
from everlearn.report.html import with_code
from everlearn.tasks.held_out import HeldOut


@pytest.fixture
def corpora(tmp_path: Path) -> list[Domain]:
    """A domain of which 3 held-out documents are near-duplicates of training text, and one that shares nothing."""
    a, b = texts(60, "a"), texts(40, "b")
    near = [" ".join([*text.split()[:55], *words(5, text).split()]) for text in a[:3]]
    held_out = write(tmp_path / "held.jsonl", [*texts(9, "h"), *near, "too short"])
    return [
        Domain(name="a", path=write(tmp_path / "a.jsonl", a), validation=held_out),
        Domain(name="b", path=write(tmp_path / "b.jsonl", b), validation=None),
    ]


def test_near_duplicates_are_found_though_no_document_is_identical(corpora, tmp_path):
    check = check_leaks(corpora, {"test examples of 't'": [*texts(6, "b")[:2], *texts(8, "t")]}, tmp_path / "cache")
    assert [(leak.texts, leak.corpus, leak.own, leak.count, leak.identical, leak.of) for leak in check.leaks] == [
        ("held-out documents of 'a'", "a", True, 3, 0, 12),
        ("test examples of 't'", "b", False, 2, 2, 10),
    ]
    assert check.looked_for == {"held-out documents of 'a'": 12, "test examples of 't'": 10}
    assert check.partial == []


def test_the_outcome_is_kept_and_made_again_where_the_text_changes(corpora, tmp_path, monkeypatch):
    told: list[list[int]] = []

    @contextlib.contextmanager
    def phase(text, total):
        told.append([])
        yield told[-1].append

    first = check_leaks(corpora, {}, tmp_path / "cache", phase)
    assert told[0][-1] == 100
    assert check_leaks(corpora[::-1], {}, tmp_path / "cache", phase).leaks == first.leaks
    assert len(told) == 1
    (kept,) = (tmp_path / "cache" / "leaks").iterdir()
    kept.write_text("{")
    assert check_leaks(corpora, {}, tmp_path / "cache", phase) == first
    assert len(told) == 2
    write(tmp_path / "held.jsonl", texts(9, "h"))
    assert check_leaks(corpora, {}, tmp_path / "cache", phase).leaks == []


def test_of_much_text_a_part_is_looked_at_and_the_rest_is_named(corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(leaks, "LOOKED_FOR", 2000)
    monkeypatch.setattr(leaks, "SEARCHED", 5000)
    monkeypatch.setattr(leaks, "STREAMED", 3000)
    streamed = [corpora[0], corpora[1].model_copy(update={"streaming": True})]
    check = check_leaks(streamed, {}, tmp_path / "cache")
    assert 3 <= check.looked_for["held-out documents of 'a'"] <= 6
    assert [note.partition(" were")[0] for note in check.partial[:1]] == [
        f"Of the 13 held-out documents of 'a', {check.looked_for[leaks.held_out_of('a')]:,}"
    ]
    assert "'a' alone" in check.partial[1]
    assert "'b' alone" in check.partial[2]
    assert check.notes()[-3:] == check.partial


def test_a_template_that_all_prompts_share_is_no_leak(tmp_path):
    template = "What is the topic of the following text from the news? Options are world, sports, business or science. "

    def prompts(count: int, name: str) -> list[str]:
        return [template + text for text in texts(count, name, 15)]

    corpus = Domain(name="a", path=write(tmp_path / "a.jsonl", prompts(200, "a")), validation=None)
    tests = {"test examples of 't'": [*prompts(93, "t"), *prompts(7, "a")]}
    (leak,) = check_leaks([corpus], tests, tmp_path / "cache").leaks
    assert (leak.count, leak.of) == (7, 100)


# -- all three verbs ------------------------------------------------------------------------------------------


def said_by_all(everlearn) -> dict[str, list[str]]:
    """What `data`, `validate` and `run` (its report in JSON, its page and its data.json) say about the text."""
    data = json.loads(everlearn("data", "recipe.yaml", "--json").out)["findings"]
    checked = json.loads(everlearn("validate", "recipe.yaml", "--json").out)
    assert checked["ok"], checked
    ran = everlearn("run", "recipe.yaml")
    assert ran.code == 0, ran.err
    shown = everlearn("validate", "recipe.yaml", "run.name=second")
    for note in checked["notes"]:
        assert note.split(":")[0] in " ".join(shown.out.split())
    folder = everlearn.run_folder
    page = (folder / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    markdown = everlearn("report", "runs/first", "--format", "markdown").out
    kept = json.loads((folder / "data.json").read_text())["notes"]
    for note in kept:
        assert str(with_code(note)).replace("&#39;", "'") in page
        assert note.partition("`")[0] in markdown.replace("\\", "")
    report = json.loads(everlearn("report", "runs/first", "--json").out)["notes"]
    return {"data": data, "validate": checked["notes"], "run": kept, "report": report}


def by_all(said: dict[str, list[str]], *parts: str) -> None:
    """Check that each verb has one sentence with these parts, and the same one."""
    sentences = [[note for note in notes if all(part in note for part in parts)] for notes in said.values()]
    assert [len(each) for each in sentences] == [1] * len(said), said
    assert len({each[0] for each in sentences}) == 1


def test_a_leak_is_said_by_data_validate_and_run(everlearn):
    a = texts(60, "a")
    near = [" ".join([*text.split()[:55], *words(5, text).split()]) for text in a[:3]]
    write(everlearn.folder / "a.jsonl", a)
    write(everlearn.folder / "held.jsonl", [*texts(9, "h"), *near])
    everlearn.recipe["domains"][0]["validation"] = "held.jsonl"
    everlearn.recipe["train"]["max_steps"] = 1
    said = said_by_all(everlearn)
    by_all(said, "3 of the 12 held-out documents of 'a' stand in its own training text (25.0%)", "`validation`")
    results = json.loads((everlearn.run_folder / "results.json").read_text())
    assert results["leaked"] == {"a": 0.25}
    verdict = json.loads(everlearn("report", "runs/first", "--json").out)["verdict"]
    assert "25 % of what 'a' is measured on stands in training text too" in " ".join(verdict)
    everlearn.recipe["data"]["max_leaked"] = 0.2
    everlearn.recipe["run"]["name"] = "third"
    everlearn.fails("run", "recipe.yaml", says=("3 of the 12 held-out", "20.0% (`data.max_leaked`)"))


def test_the_sentence_of_one_leak_is_in_the_singular():
    said = str(leaks.Leak("held-out documents of 'a'", corpus="a", own=True, count=1, identical=0, of=8))
    assert "1 of the 8 held-out documents of 'a' stands in" in said
    assert "it is scored" in said


def test_examples_that_are_cut_are_counted_by_data_validate_and_run(everlearn):
    rows = [{"text": words(3 + number, number), "answer": words(2, number)} for number in range(30)]
    (everlearn.folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "target_column": "answer", "validation": 0.2}]
    everlearn.recipe["model"] = str(everlearn.models / "llama")
    everlearn.recipe["train"]["max_steps"] = 1
    said = said_by_all(everlearn)
    tokenizer = tiny.tokenizer()
    lengths = [len(tokenizer(row["text"] + row["answer"])["input_ids"]) for row in rows]
    assert sum(length > 40 for length in lengths) > 15
    by_all(said, "of the 30 examples of 'a' are longer than a row and cut in their prompt", "`data.block_size`")


def test_a_huge_held_out_row_is_mended_alike(everlearn):
    huge = " ".join(texts(100, "huge"))
    write(everlearn.folder / "a.jsonl", [*texts(3, "a", 5), huge])
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "validation": 0.3}]
    everlearn.recipe["train"]["max_steps"] = 1
    said = said_by_all(everlearn)
    by_all(said, "'a' has too few documents, or too unequal ones", "the end of its text")


def test_a_share_that_is_far_off_is_said_by_all(everlearn):
    rows = [{"text": words(4, number), "answer": words(1 if number < 9 else 400, number)} for number in range(10)]
    (everlearn.folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "target_column": "answer", "validation": 0.1}]
    everlearn.recipe["model"] = str(everlearn.models / "llama")
    everlearn.recipe["train"]["max_steps"] = 1
    by_all(said_by_all(everlearn), "'a' holds out 9", "`validation: 0.1` asks for 10.0%")


@pytest.mark.parametrize("streaming", [False, True])
def test_text_shorter_than_a_row_is_refused_before_training(everlearn, streaming):
    write(everlearn.folder / "a.jsonl", ["one two", "three four"])
    everlearn.recipe["domains"] = [{"name": "a", "path": "a.jsonl", "validation": None, "streaming": streaming}]
    said = ("'a' has ", "tokens to learn from, fewer than one block (`data.block_size: 32`)")
    everlearn.fails("run", "recipe.yaml", says=said)
    assert not everlearn.run_folder.exists()
    checks = json.loads(everlearn("validate", "recipe.yaml", "--json").out)["checks"]
    (sentence,) = (check["detail"] for check in checks if check["ok"] is False)
    assert all(part in sentence for part in said)
    assert json.loads(everlearn("data", "recipe.yaml", "--json").out)["findings"][0] == sentence


def test_what_an_earlier_domain_held_out_is_looked_for_in_a_new_one(everlearn, finished_run):
    shutil.copytree(finished_run, everlearn.run_folder)
    rows = HeldOut.load(everlearn.run_folder / "evaluation/sets/a.safetensors").blocks
    old = [tiny.tokenizer().decode(row["input_ids"], skip_special_tokens=True) for row in rows.take(range(4))]
    with (everlearn.folder / "c.jsonl").open("a") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in old)
    learnt = everlearn("learn", "runs/first", "--domain", "c=c.jsonl", "train.max_steps=1", "-q")
    assert learnt.code == 0, learnt.err
    notes = json.loads((everlearn.run_folder / "data.json").read_text())["notes"]
    assert [note for note in notes if "held-out rows of 'a' stand in the training text of 'c'" in note]


@pytest.mark.parametrize(
    ("leak", "says"),
    [
        (
            ("a", True, 1, 1, 4),
            "1 of the 4 held-out documents of 'a' stands in its own training text, to the letter (2",
        ),
        (
            ("b", False, 1, 0, 1),
            "The only held-out document of 'a' stands in the training text of 'b' (100.0%): it is ",
        ),
        (
            ("a", True, 2, 1, 4),
            "2 of the 4 held-out documents of 'a' stand in its own training text, 1 of them to the ",
        ),
    ],
)
def test_a_sentence_has_the_number_of_its_noun(leak, says):
    assert str(leaks.Leak("held-out documents of 'a'", *leak)).startswith(says)


def test_what_was_looked_for_is_told_in_singular_and_plural_and_nothing_as_nothing():
    looked_for = {"held-out documents of 'a of b'": 1, "test examples of 't'": 2, "held-out rows of 'c'": 0}
    assert leaks.LeakCheck(looked_for=looked_for, characters=12).scope() == (
        "looked for 1 held-out document of 'a of b', 2 test examples of 't' in 12 B of training text"
    )
    assert leaks.LeakCheck(characters=12).scope() == "no held-out text to look for"
