"""Text of several columns, or of a value inside one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everlearn.data.corpus import Corpus
from everlearn.data.documents import corpus_fingerprint, read_documents
from everlearn.data.text_template import columns_in, filled
from everlearn.errors import DataError, EverlearnError
from everlearn.run import inputs

ROWS = [
    {"title": "First", "document": {"body": {"text": "one text"}, "year": 2024}},
    {"title": "Second", "document": {"body": {"text": "another text"}, "year": 2025}},
    {"title": None, "document": None},
]
BOTH = "{title} ({document.year})\n\n{document.body.text}"
TEXTS = ["First (2024)\n\none text", "Second (2025)\n\nanother text"]


def written(folder: Path, ending: str) -> Path:
    path = folder / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(("template", "texts"), [(BOTH, TEXTS), ("{document.body.text}", ["one text", "another text"])])
def test_values_inside_columns_are_read(tmp_path: Path, ending: str, template: str, texts: list[str]) -> None:
    corpus = Corpus(path=str(written(tmp_path, ending)), text_column=template)
    assert [document.text for document, _ in read_documents(corpus)] == texts


def test_answers_may_be_templates_too(tmp_path: Path) -> None:
    path = str(written(tmp_path, "jsonl"))
    corpus = Corpus(path=path, text_column="{title}: ", target_column="{document.body.text}")
    assert [(d.text, d.target) for d, _ in read_documents(corpus)] == [
        ("First: ", "one text"),
        ("Second: ", "another text"),
    ]


def test_a_name_without_braces_is_a_column_whatever_it_has_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"document.body": "text"}\n', encoding="utf-8")
    assert next(read_documents(Corpus(path=str(path), text_column="document.body")))[0].text == "text"


def test_braces_can_be_text() -> None:
    assert filled("{{{a}}}", {"a": "x"}, "here") == "{x}"
    assert columns_in("{a} {b.c} {a}") == ("a", "b")


@pytest.mark.parametrize(
    ("template", "values", "says"),
    [
        ("{a.b}", {"a": "text"}, "here: `{a.b}`: 'a' holds str ('text'), which has no 'b' in it"),
        ("{a}", {"a": [1]}, "here: `{a}` must be a text or a number; it is list"),
        ("{a}", {"a": True}, "must be a text or a number"),
    ],
)
def test_values_that_are_no_text_are_refused(template: str, values: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError) as error:
        filled(template, values, "here")
    assert says in str(error.value)


@pytest.mark.parametrize("template", ["{", "}", "{}", "{a!r}", "{a:>4}", "{{a}}", "{a..b}"])
def test_templates_that_are_none_are_refused(template: str) -> None:
    with pytest.raises((EverlearnError, ValueError), match=r"`\{column\}`"):
        Corpus(path="rows.jsonl", text_column=template)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'titel'"):
        next(read_documents(Corpus(path=str(written(tmp_path, "jsonl")), text_column="{titel}")))


def test_texts_in_memory_keep_the_columns_of_a_template(tmp_path: Path) -> None:
    import datasets

    keys = {"text_column": BOTH}
    path = inputs.keep(datasets.Dataset.from_list(ROWS[:2]), "first", keys, str(tmp_path))
    assert [document.text for document, _ in read_documents(Corpus(path=str(path), **keys))] == TEXTS


def test_another_template_is_another_corpus(tmp_path: Path) -> None:
    path = str(written(tmp_path, "jsonl"))
    prints = {corpus_fingerprint(Corpus(path=path, text_column=each)) for each in (BOTH, "{title}")}
    assert len(prints) == 2
