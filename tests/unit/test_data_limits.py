"""How much a file may ask of memory, and what is damaged in another way than a text editor would damage it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from everlearn.data.corpus import Corpus
from everlearn.data.documents import read_documents
from everlearn.data.opening import Limits
from everlearn.data.readers import read_rows
from everlearn.errors import DataError


def texts(path: Path, limits: Limits | None = None, **options) -> list[str]:
    corpus = Corpus(path=str(path), **options)
    if limits is not None:
        corpus.limited(limits)
    return [document.text for document, _ in read_documents(corpus)]


def sentence(path: Path, content: bytes, limits: Limits | None = None, **options) -> str:
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        texts(path, limits, **options)
    return str(caught.value)


SMALL = Limits(row_bytes=2000, expansion=20)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"short\n" + b"x" * 3000, ["a.txt, line 2,", "2,000 bytes", "data.max_row_bytes"]),
        ("a.jsonl", b'{"text": "' + b"x" * 3000 + b'"}', ["line 1,", "data.max_row_bytes"]),
        ("a.json", b'[{"text": "a"}, {"text": "' + b"x" * 3000 + b'"}]', ["item 2,", "data.max_row_bytes"]),
        ("a.csv", b"text\n" + b'"' + b"x\n" * 2000, ["quote", "data.max_row_bytes"]),
        ("a.jsonl.gz", gzip.compress(b"x" * 10**6), ["line 1,", "data.max_row_bytes"]),
        ("a.txt.gz", gzip.compress(b"x\n" * 10**6), ["20 times", "data.max_expansion"]),
        ("a.json.gz", gzip.compress(b"[" + b'{"text": "a"},' * 10**5), ["20 times", "data.max_expansion"]),
    ],
)
def test_what_is_longer_than_allowed_is_refused_by_its_key(tmp_path, name, content, words):
    said = sentence(tmp_path / name, content, SMALL)
    assert str(tmp_path / name) in said
    assert all(word in said for word in words), said


def test_a_whole_file_as_one_document_has_the_same_limit(tmp_path):
    said = sentence(tmp_path / "a.md", b"line\n" * 600, SMALL, documents="file")
    assert "which is one document" in said
    assert "data.max_row_bytes" in said


def test_a_bomb_is_refused_before_it_is_in_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(b"0" * 2**20)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb\.jsonl\.gz, line 1,"):
        texts(path, Limits(row_bytes=2**20))
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


def test_an_array_in_one_line_is_read_item_by_item(tmp_path):
    rows = [{"text": f'document {i} \\ " 漢字 😀 ' + "x" * (i % 700)} for i in range(6000)]
    (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=False))
    assert (tmp_path / "a.json").stat().st_size > 2 * 2**20  # more than two pieces
    # No row is long, though the file is one line.
    assert texts(tmp_path / "a.json", SMALL) == [row["text"] for row in rows]
    one = [{"text": "y" * 3 * 2**20}, {"text": "z"}]
    (tmp_path / "b.json").write_text(json.dumps(one, indent=1))
    assert texts(tmp_path / "b.json") == [row["text"] for row in one]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"text": "a"},\n {"text" 3}]', ["line 2, column 10"]),
        (b'[{"text": "a"}\n\n {"text": "b"}]', ["delimiter", "line 3, column 2"]),
        (b'[{"text": "a"}', ["line 1, column 15"]),
        (b'[{"text": "a"},]', ["line 1, column 16"]),
        (b'[{"text": "a"}] x', ["Extra data", "column 17"]),
        (b'[{"text": "a', ["Unterminated string", "column 11"]),
        (b'[{"text": "a"}, 5]', ["item 2", "int"]),
        (b'[{"text": "a"}, [{}]]', ["item 2", "list"]),
        (b'[{"text": "\\x"}]' + b" " * 50, ["escape", "column 12"]),
        (b"[" * 100_000, ["item 1"]),
        (b'[{"text": "caf\xe9"}]', ["UTF-8", "line 1, byte 14"]),
        (b'[\n{"text": "\xc3', ["UTF-8", "line 2, byte 10"]),
        (b'[{"text": "a\0"}]', ["binary"]),
    ],
)
def test_broken_arrays_say_where(tmp_path, content, words):
    said = sentence(tmp_path / "a.json", content)
    assert all(word in said for word in words), said


def test_a_break_far_into_a_file_is_found_at_its_line(tmp_path):
    rows = b",\n".join(b'{"text": "' + b"x" * 1000 + b'"}' for _ in range(3000))
    said = sentence(tmp_path / "a.json", b"[" + rows + b',\n{"text" "y"}]')
    assert "line 3001, column 9" in said
    said = sentence(tmp_path / "b.json", b"[" + rows + b',\n{"text": "\xff"}]')
    assert "line 3001, byte 10" in said


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"text,n,text\na,1,b\n"),
        ("a.tsv", b"text\ttext\na\tb\n"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n'),
        ("a.json", b'[{"text": "a", "n": {"x": 1}, "text": "b"}]'),
    ],
)
def test_a_column_that_stands_twice_is_refused(tmp_path, name, content):
    assert "the column 'text' 2 times" in sentence(tmp_path / name, content)


def test_twice_what_is_not_read_does_no_harm(tmp_path):
    (tmp_path / "a.csv").write_text("x,text,x,\n1,a,2,\n")
    (tmp_path / "a.jsonl").write_text('{"text": "b", "x": {"text": 1, "text": 2}}\n{"n": 1, "n": 2, "text": "c"}\n')
    assert texts(tmp_path) == ["a", "b", "c"]


def test_a_parquet_column_twice_is_refused(tmp_path):
    parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="the column 'text' 2 times"):
        texts(tmp_path / "a.parquet")


def _broken_text() -> pyarrow.Array:
    raw = pyarrow.array([b"fine", b"caf\xe9", b"fine"])
    return pyarrow.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (_broken_text(), ["UTF-8", "rows 1 to 3"]),
        (pyarrow.array([b"bytes"]), ["row 1", "bytes"]),
        (pyarrow.array([["a", "list"]]), ["row 1", "list"]),
        (pyarrow.array([{"a": "struct"}]), ["row 1", "dict"]),
        (pyarrow.array([1.5]), ["row 1", "float"]),
        (pyarrow.array([0], pyarrow.timestamp("ns")), ["row 1"]),
        (pyarrow.array([None, None], pyarrow.null()), ["each of its 2 rows is null or blank"]),
        (pyarrow.array([], pyarrow.string()), ["empty"]),
    ],
)
def test_parquet_that_holds_no_text_gets_a_sentence(tmp_path, column, words):
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        texts(tmp_path / "a.parquet")
    assert all(word in str(caught.value) for word in ["a.parquet", *words]), caught.value


def test_dictionaries_and_large_strings_of_parquet_are_text(tmp_path):
    words = pyarrow.array(["a", None, "b", "a"])
    table = pyarrow.table({"text": words.dictionary_encode(), "large": words.cast(pyarrow.large_string())})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ["a", "b", "a"]
    assert texts(tmp_path / "a.parquet", text_column="large") == ["a", "b", "a"]


def test_a_parquet_group_is_read_in_parts_and_gone_on_with_anywhere(tmp_path):
    rows = [f"row {i}" for i in range(600)]
    parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet")
    found = [row.values["text"] for row in read_rows(tmp_path / "a.parquet", ["text"], row=255)]
    assert found == rows[255:]


def _repeated(text: str, count: int) -> pyarrow.Array:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), pyarrow.array([text]))


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (["short", "x" * 3000], ["row 2,", "2,000 bytes", "data.max_row_bytes"]),
        (_repeated("x" * 3000, 2), ["row 1,", "2,000 bytes", "data.max_row_bytes"]),
        ([[{"role": "user", "content": "x" * 3000}]], ["row 1,", "data.max_row_bytes"]),
        (["x" * 1900] * 600, ["20 times", "data.max_expansion"]),
        (_repeated("x" * 1900, 600), ["20 times", "data.max_expansion"]),
    ],
)
def test_parquet_has_the_same_limits(tmp_path, column, words):
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError) as caught:
        list(read_rows(tmp_path / "a.parquet", ["text"], limits=SMALL))
    assert all(word in str(caught.value) for word in ["a.parquet", *words]), caught.value


def test_a_text_that_a_parquet_file_repeats_is_in_memory_once(tmp_path):
    parquet.write_table(pyarrow.table({"text": _repeated("x" * 2**20, 256)}), tmp_path / "a.parquet")
    pool = pyarrow.default_memory_pool()
    before, held, lengths = pool.bytes_allocated(), [], []
    for row in read_rows(tmp_path / "a.parquet", ["text"], limits=Limits(2**20, 1e9)):
        held.append(pool.bytes_allocated() - before)
        lengths.append(len(row.values["text"]))
    assert lengths == [2**20] * 256
    assert max(held) < 32 * 2**20


def test_utf_16_is_called_by_its_name(tmp_path):
    assert "UTF-16" in sentence(tmp_path / "a.csv", "text\nä\n".encode("utf-16"))
