"""``everlearn diff``: its table, sentence, JSON, page and mistakes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import tiny


@pytest.fixture
def text(everlearn):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in tiny.texts(60))
    (everlearn.folder / "words.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return everlearn


HOW = ("--block-size", "32", "--blocks", "8")


def test_two_models_are_compared_in_a_table_a_sentence_and_a_page(text):
    old, new = (str(text.models / name) for name in ("llama", "llama"))
    found = text("diff", f"first={old}", f"second={new}", "--text", "words.jsonl.gz", *HOW, "-o", "diff.html")
    assert found.code == 0, found.err
    assert "no difference" in found.out
    assert "On words (0.000 [0.000, 0.000] bits per byte) no difference can be shown." in found.out
    assert "Page: diff.html" in found.out
    page = (text.folder / "diff.html").read_text(encoding="utf-8")
    assert "second, compared with first" in page
    assert str(text.folder) not in page


def test_one_document_is_told_in_the_singular(text):
    (text.folder / "one.txt").write_text(" ".join(tiny.texts(2)), encoding="utf-8")
    model = str(text.models / "llama")
    found = text("diff", model, model, "--text", "one.txt", "--block-size", "32", "--blocks", "1")
    assert found.code == 0, found.err
    shown = " ".join(found.out.replace("│", " ").split())
    assert "1 document " in shown
    assert "1 passages" not in shown


def test_json_is_one_object_and_nothing_else(text):
    model = str(text.models / "roberta")
    found = text("diff", model, model, "--text", "mine=words.jsonl.gz", *HOW, "--json")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert [each["name"] for each in data["texts"]] == ["mine"]
    assert data["kind"] == "masked"
    assert data["texts"][0]["verdict"] == "no difference"


def test_the_text_of_a_recipe_is_its_held_out_documents(text):
    text.recipe["end_tasks"] = [{"name": "topics", "train": "train.jsonl", "test": "test.jsonl"}]
    model = str(text.models / "roberta")
    found = text("diff", model, model, "--on", "recipe.yaml", *HOW, "--json")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert [each["name"] for each in data["texts"]] == ["a", "b"]
    assert any("topics" in note and "fine-tune" in note for note in data["notes"])
    assert all(each["documents"] <= 45 for each in data["texts"]), "of 150 documents a fifth is held out"


@pytest.mark.parametrize("columns", [("content",), ("id", "Body"), ("headline", "story")])
def test_the_column_of_text_is_found_as_init_finds_it(text, columns):
    rows = [dict.fromkeys(columns[:-1], "short") | {columns[-1]: words} for words in tiny.texts(60)]
    (text.folder / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = str(text.models / "llama")
    read = [
        text("diff", model, model, "--text", f"news={path}", *HOW, "--json")
        for path in ("words.jsonl.gz", "news.jsonl")
    ]
    assert [each.code for each in read] == [0, 0], read[1].err
    one, other = (json.loads(each.out) for each in read)
    assert one["texts"] == other["texts"]
    assert other["notes"] == [*one["notes"], f"Of 'news' the column '{columns[-1]}' is read."]


def test_the_column_of_text_may_be_named(text):
    rows = [{"prompt": "Who?" * 9, "answer": words} for words in tiny.texts(60)]
    (text.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = str(text.models / "llama")
    named = text("diff", model, model, "--text", "t=rows.jsonl", "--text-column", "answer", *HOW, "--json")
    plain = text("diff", model, model, "--text", "t=words.jsonl.gz", *HOW, "--json")
    assert json.loads(named.out)["texts"] == json.loads(plain.out)["texts"]
    missing = text("diff", model, model, "--text", "t=rows.jsonl", "--text-column", "body", *HOW)
    assert missing.code == 2
    assert "'body'" in missing.err


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "Who?", "answer": "I."}, "name the column that is to be read with `--text-column`"),
        ({"messages": [{"role": "user", "content": "Who?"}]}, "and plain text is needed here. Name another file"),
        ({"text": None}, "each of its 1 rows is null or blank"),
        ({"number": 3}, "has no column of text: its columns are 'number'"),
    ],
)
def test_rows_without_plain_text_are_refused_with_a_remedy(text, row, says):
    (text.folder / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    model = str(text.models / "llama")
    found = text("diff", model, model, "--text", "rows.jsonl", *HOW)
    assert found.code == 2
    assert says in " ".join(found.err.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("llama", "nowhere/at/all", "--text", "words.jsonl.gz"), "AFTER is "),
        (("llama", "llama", "--text", "nothing.txt"), "nothing.txt"),
        (("llama", "llama", "--text", "empty.txt"), "is empty"),
        (("llama", "llama", "--text", "short.txt"), "fewer than a row"),
        (("llama", "roberta", "--text", "words.jsonl.gz"), "Compare two models of one kind"),
        (("llama", "llama", "--text", "words.jsonl.gz", "--text", "words.jsonl.gz"), "NAME=PATH"),
        (("llama", "llama"), "nothing to compare on"),
    ],
)
def test_a_mistake_is_one_sentence(text, arguments, says):
    (text.folder / "empty.txt").write_text("", encoding="utf-8")
    (text.folder / "short.txt").write_text("the model", encoding="utf-8")
    words = [str(text.models / word) if word in ("llama", "roberta") else word for word in arguments]
    found = text("diff", *words)
    assert found.code == 2
    assert says in found.err
    assert found.err.count("\n") == 1 or "Traceback" not in found.err


def test_a_run_is_no_model(text):
    run = Path(text.folder / "runs" / "first")
    (run / "stage-01-a").mkdir(parents=True)
    (run / "recipe.yaml").write_text("{}", encoding="utf-8")
    found = text("diff", str(text.models / "llama"), str(run), "--text", "words.jsonl.gz")
    assert found.code == 2
    assert "Name one of its stages" in found.err
