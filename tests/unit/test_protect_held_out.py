"""The forms in which `protect` takes held-out text, and those that it refuses with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from everlearn.errors import DataError
from everlearn.protecting.held_out import held_out_texts

TEXTS = tiny.texts(60, seed=3)


def rows_of(held_out: Any) -> list[int]:
    return [len(text) for text in held_out_texts(held_out, tiny.model("gpt2"), tiny.tokenizer())]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    halves = [tmp_path / "one.jsonl", tmp_path / "my texts.txt"]
    halves[0].write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:30]))
    halves[1].write_text("\n".join(TEXTS[30:]))
    return halves


def test_files_are_read_in_any_form(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(TEXTS)
    assert expected[0] > 1
    assert rows_of(files) == rows_of([str(file) for file in files]) == rows_of({"general": files}) == expected
    monkeypatch.chdir(files[0].parent)
    assert rows_of(["one.jsonl", "my texts.txt"]) == expected


def test_the_column_of_text_is_found(tmp_path: Path) -> None:
    path = tmp_path / "news.jsonl"
    path.write_text("".join(json.dumps({"id": "a", "content": text}) + "\n" for text in TEXTS))
    assert rows_of(path) == rows_of(TEXTS)


def test_texts_that_only_end_like_a_file_stay_texts() -> None:
    texts = [f"{text} It stands in notes.txt" for text in TEXTS]
    assert rows_of(texts) == rows_of([*texts[:-1], texts[-1]])
    assert rows_of(texts)[0] >= rows_of(TEXTS)[0]


@pytest.mark.parametrize(
    ("held_out", "says"),
    [
        ([{"text": "a"}], r"`dict` is among them.*row\[\"text\"\]"),
        ({"rows": [{"text": "a"}]}, r"'rows'.*`dict` is among"),
        ({"one": {"two": "a.txt"}}, r"'one'.*`dict` is among"),
        ([1, 2], "`int` is among them"),
        (3, "`int` is among them"),
        ([Path("a.txt"), "some text"], r"both texts and files \('a.txt'\)"),
        (["some text", "corpus/a.jsonl"], r"both texts and files \('corpus/a.jsonl'\)"),
        (["no-such-file.jsonl"], "no-such-file.jsonl"),
    ],
)
def test_other_forms_are_refused(held_out: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        rows_of(held_out)
