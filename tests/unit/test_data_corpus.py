"""Corpora: every form of file, how much one may ask of memory, and what is damaged beyond a text editor's ways."""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import io
import json
import lzma
import random
import shutil
import zlib
from pathlib import Path

import datasets
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pydantic import ValidationError

from everlearn.data.columns import first_rows, text_corpus
from everlearn.data.corpus import Corpus, Document, Domain, is_held_out
from everlearn.data.documents import check_corpus, corpus_fingerprint, read_documents
from everlearn.data.readers import read_rows
from everlearn.data.text_files import Limits
from everlearn.errors import DataError

TEXTS = ['First, with "quotes"\nand a second line', "zweiter Text: äöü 漢字", "third\twith a tab", "fourth", "fifth 😀"]


def save(path: Path, texts: list[str]) -> Path:
    """Write texts as whatever the name says; line formats lose inner line ends."""
    suffixes = path.suffixes
    rows = [{"text": text, "n": i} for i, text in enumerate(texts)]
    if suffixes[0] == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
        return path
    if suffixes[0] == ".txt":
        content = "".join(text.replace("\n", " ") + "\n\n" for text in texts)
    elif suffixes[0] == ".jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows)
    elif suffixes[0] == ".json":
        content = json.dumps(rows, indent=1)
    else:
        out = io.StringIO()
        writer = csv.writer(out, delimiter="\t" if suffixes[0] == ".tsv" else ",")
        writer.writerow(["n", "text"])
        writer.writerows([row["n"], row["text"]] for row in rows)
        content = out.getvalue()
    if suffixes[-1] == ".zst":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
            file.write(content.encode())
        return path
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(suffixes[-1], lambda raw: raw)
    path.write_bytes(pack(content.encode()))
    return path


def texts_of(corpus: Corpus, position=None) -> list[str]:
    return [document.text for document, _ in read_documents(corpus, position=position)]


NAMES = [
    "a.txt",
    "a.jsonl",
    "a.json",
    "a.csv",
    "a.tsv",
    "a.parquet",
    "a.jsonl.gz",
    "a.txt.xz",
    "a.csv.bz2",
    "a.jsonl.zst",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_its_documents_and_goes_on_at_any_of_them(tmp_path, name):
    corpus = Corpus(path=str(save(tmp_path / name, TEXTS)))
    expected = [text.replace("\n", " ") for text in TEXTS] if ".txt" in name else TEXTS
    found = list(read_documents(corpus))
    assert [document.text for document, _ in found] == expected
    for i, (_, position) in enumerate(found):
        assert texts_of(corpus, json.loads(json.dumps(position))) == expected[i + 1 :]
    check_corpus(corpus)


def test_a_folder_and_a_glob_are_read_in_order_and_resumed_across_files(tmp_path):
    for name, part in (("b/x.jsonl", TEXTS[:2]), ("a.txt", ["one", "two"]), ("b/y.csv.gz", TEXTS[2:])):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save(tmp_path / name, part)
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "image.png").write_bytes(b"\0\1")
    corpus = Corpus(path=str(tmp_path))
    expected = ["one", "two", *TEXTS]
    found = list(read_documents(corpus))
    assert [document.text for document, _ in found] == expected
    assert all(texts_of(corpus, position) == expected[i + 1 :] for i, (_, position) in enumerate(found))
    assert texts_of(Corpus(path=str(tmp_path / "**" / "*.jsonl"))) == TEXTS[:2]
    check_corpus(corpus)


def test_whole_files_as_documents_and_max_documents(tmp_path):
    (tmp_path / "a.md").write_text("# Title\n\nbody\n")
    (tmp_path / "b.rst").write_text("other\n")
    whole = Corpus(path=str(tmp_path), documents="file")
    assert texts_of(whole) == ["# Title\n\nbody\n", "other\n"]
    few = Corpus(path=str(tmp_path), max_documents=2)
    found = list(read_documents(few))
    assert [document.text for document, _ in found] == ["# Title", "body"]
    assert texts_of(few, found[0][1]) == ["body"]
    assert texts_of(few, found[1][1]) == []


def test_prompts_and_answers(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"q": "2+2=", "a": " 4"}\n{"q": "  ", "a": "x"}\n{"q": "y", "a": ""}\n')
    corpus = Corpus(path=str(tmp_path / "a.jsonl"), text_column="q", target_column="a")
    assert [document for document, _ in read_documents(corpus)] == [Document("2+2=", " 4")]


def test_a_byte_order_mark_and_half_a_surrogate_do_no_harm(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "ok"}\n{"text": "half \\ud83d"}\n')
    assert texts_of(Corpus(path=str(tmp_path / "a.jsonl"))) == ["ok", "half �"]


def bad(tmp_path: Path, name: str, content: bytes, **options) -> str:
    """The sentence that reading a corpus of this content raises."""
    (tmp_path / name).write_bytes(content)
    corpus = Corpus(path=str(tmp_path / name), **options)
    with pytest.raises(DataError) as caught:
        list(read_documents(corpus))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("e.txt", b"", ["e.txt", "empty"]),
        ("e.jsonl", b"\n\n", ["empty"]),
        ("e.json", b"[]", ["empty"]),
        ("e.csv", b"text\n", ["empty"]),
        ("b.txt", b"text\nPK\x00\x03", ["b.txt", "binary", "line 2", "NUL"]),
        ("u.txt", b"fine\ncaf\xe9\n", ["u.txt", "UTF-8", "line 2", "byte 3"]),
        ("j.jsonl", b'{"text": "a"}\n\n{"text": \n', ["j.jsonl, line 3", "not valid JSON"]),
        ("j.json", b'[{"text": "a"},\n {"text" 3}]', ["j.json", "not valid JSON", "line 2"]),
        (
            "o.json",
            b'{\n "data": [\n  {"text": "a"}\n ]\n}\n',
            ["o.json, line 1", "goes on in the next", "`jq -c '.data[]'"],
        ),
        ("o.jsonl", b'{"text": "a",\n "id": 1}\n', ["o.jsonl, line 1", "goes on in the next line"]),
        ("d.jsonl", b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n', ["no column 'text'", "`everlearn.protect`"]),
        ("l.jsonl", b'["text"]\n', ["line 1", "list"]),
        ("n.jsonl", b'{"text": "a"}\n{"text": 5}\n', ["line 2", "'text'", "int"]),
        ("n.jsonl", b'{"text": null}\n', ["null"]),
        ("c.jsonl", b'{"txt": "a", "id": 1}\n', ["no column 'text'", "'txt', 'id'", "Did you mean 'txt'"]),
        ("c.csv", b"id,body\n1,x\n", ["no column 'text'", "'id', 'body'"]),
        ("r.csv", b"id,text\n1,x,y\n", ["line 2", "3 cells", "2 columns"]),
        ("g.txt.gz", b"not gzip", ["g.txt.gz", "decompressed"]),
        ("x.txt.xz", lzma.compress(b"text " * 5000)[:-40], ["decompressed"]),
        (
            "z.txt.gz",
            gzip.compress(random.Random(0).randbytes(9999).hex().encode())[:-9],
            ["decompressed", "cut short"],
        ),
        ("z.txt.zst", b"nothing", ["decompressed"]),
        ("p.parquet", b"PAR0", ["p.parquet", "Parquet"]),
        ("p.parquet.gz", b"PAR0", ["compressed inside"]),
        ("a.docx", b"PK", ["format", "not known", ".jsonl", "Convert it"]),
    ],
)
def test_bad_files_raise_a_sentence(tmp_path, name, content, words):
    sentence = bad(tmp_path, name, content)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_a_table_of_another_separator_is_read(tmp_path, separator):
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL).writerows([("id", "text"), *enumerate(TEXTS)])
    corpus = Corpus(path=str(tmp_path / "a.csv"))
    found = list(read_documents(corpus))
    assert [document.text for document, _ in found] == TEXTS
    assert all(texts_of(corpus, position) == TEXTS[i + 1 :] for i, (_, position) in enumerate(found))
    assert first_rows(str(tmp_path / "a.csv"), "path")[0] == {"id": "0", "text": TEXTS[0]}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz"])
def test_of_an_archive_a_file_is_read_as_it_is_advised(tmp_path, name, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save(tmp_path / "rows.jsonl", TEXTS)
    form = {"a.zip": "zip", "a.tar": "tar"}.get(name, "gztar")
    shutil.make_archive(str(tmp_path / "a"), form, tmp_path, "rows.jsonl")
    made = next(tmp_path.glob("a.*"))
    made.rename(tmp_path / name)
    with pytest.raises(DataError, match="To read a file inside of it, write") as caught:
        check_corpus(Corpus(path=str(tmp_path / name)))
    advised = str(caught.value).split("`")[1]
    assert texts_of(Corpus(path=advised)) == TEXTS


def test_wrong_columns_of_parquet_are_listed(tmp_path):
    path = save(tmp_path / "a.parquet", TEXTS)
    with pytest.raises(DataError, match=r"no column 'body'; its columns are 'text', 'n'"):
        check_corpus(Corpus(path=str(path), text_column="body"))
    with pytest.raises(DataError, match="must hold text; it holds int"):
        check_corpus(Corpus(path=str(path), text_column="n"))


def test_a_missing_file_names_the_nearest_one(tmp_path):
    (tmp_path / "contracts.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"no such file.* Did you mean 'contracts.jsonl'"):
        check_corpus(Corpus(path=str(tmp_path / "contract.jsonl")))
    with pytest.raises(DataError, match=r"The folder .* does not exist"):
        check_corpus(Corpus(path=str(tmp_path / "nowhere" / "contract.jsonl")))
    with pytest.raises(DataError, match="matches no file"):
        check_corpus(Corpus(path=str(tmp_path / "*.csv")))
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="a folder without any file of a known format"):
        check_corpus(Corpus(path=str(tmp_path / "folder")))


def test_the_held_out_file_is_checked_too(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": "y"}')
    domain = Domain(name="d", path=str(tmp_path / "a.jsonl"), text_column="x", validation=str(tmp_path / "b.jsonl"))
    with pytest.raises(DataError, match=r"b\.jsonl`: there is no such file"):
        check_corpus(domain)
    save(tmp_path / "b.jsonl", TEXTS)
    with pytest.raises(DataError, match=r"b\.jsonl, line 1 has no column 'x'"):
        check_corpus(domain)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "a b", "ü"])
def test_domain_names_are_slugs(name):
    with pytest.raises(ValidationError, match="letters, digits"):
        Domain(name=name, path="x.txt")


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_a_held_out_share_lies_between_0_and_1(share):
    with pytest.raises(ValidationError, match="use null"):
        Domain(name="a", path="x.txt", validation=share)


def test_unknown_keys_are_refused():
    with pytest.raises(ValidationError, match="Extra inputs"):
        Corpus(path="x.txt", text_colum="t")


@settings(max_examples=40)
@given(st.lists(st.text(min_size=1), unique=True, max_size=40), st.randoms(), st.floats(0.01, 0.99))
def test_what_is_held_out_depends_on_the_text_alone(texts, order, share):
    texts = [text for text in texts if text.isprintable()]
    shuffled = order.sample(texts, len(texts))
    held = {text for text in texts if is_held_out(Document(text), share)}
    assert held == {text for text in shuffled if is_held_out(Document(text, "answer"), share)}
    assert held <= {text for text in texts if is_held_out(Document(text), min(share + 0.1, 1.0))}


def test_the_held_out_share_is_about_what_was_asked():
    held = sum(is_held_out(Document(f"document {i}"), 0.05) for i in range(20_000))
    assert 880 < held < 1120  # 1000 ± 4 standard deviations


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.text(max_size=20), min_size=1, max_size=12), name=st.sampled_from(["w.jsonl", "w.csv", "w.txt.gz"])
)
def test_wild_text_is_resumed_at_every_document(tmp_path, rows, name):
    rows = [row.replace("\r", "").replace("\0", "").encode("utf-8", "replace").decode() for row in rows]
    corpus = Corpus(path=str(save(tmp_path / name, [*rows, "end"])))
    found = list(read_documents(corpus))
    if name == "w.jsonl":
        assert [document.text for document, _ in found] == [row for row in [*rows, "end"] if row.strip()]
    for i, (_, position) in enumerate(found):
        assert texts_of(corpus, position) == [document.text for document, _ in found[i + 1 :]]


def test_fingerprints_follow_content_and_settings_not_places(tmp_path):
    (tmp_path / "other").mkdir()
    one, same = (Corpus(path=str(save(folder / "a.jsonl", TEXTS))) for folder in (tmp_path, tmp_path / "other"))
    assert corpus_fingerprint(one) == corpus_fingerprint(same)
    assert corpus_fingerprint(one) != corpus_fingerprint(one.model_copy(update={"max_documents": 2}))
    save(tmp_path / "a.jsonl", TEXTS[:-1])
    assert corpus_fingerprint(one) != corpus_fingerprint(same)


# -- hub -------------------------------------------------------------------------------------------------------


def test_a_hub_id_without_network_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "reviews").mkdir()
    corpus = Corpus(path="data/review")
    assert corpus.on_hub
    for action in (lambda: check_corpus(corpus), lambda: list(read_documents(corpus))):
        with pytest.raises(DataError, match=r"cannot be reached.*no local file.*Did you mean 'reviews'") as error:
            action()
        assert "\n" not in str(error.value)
    assert not Corpus(path="data/reviews").on_hub
    assert not Corpus(path="data/reviews.jsonl").on_hub


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_data_is_read_and_resumed(monkeypatch, streaming):
    rows = datasets.Dataset.from_list([{"body": text} for text in TEXTS])
    asked = {}

    def load(path, subset, **options):
        asked.update(options, path=path, subset=subset)
        return rows.to_iterable_dataset(num_shards=2) if options["streaming"] else rows

    monkeypatch.setattr(datasets, "load_dataset", load)
    corpus = Corpus(
        path="someone/some", subset="en", split="test", revision="v1", text_column="body", streaming=streaming
    )
    found = list(read_documents(corpus))
    assert [document.text for document, _ in found] == TEXTS
    assert asked == {"path": "someone/some", "subset": "en", "split": "test", "revision": "v1", "streaming": streaming}
    for i, (_, position) in enumerate(found):
        assert texts_of(corpus, json.loads(json.dumps(position))) == TEXTS[i + 1 :]
    with pytest.raises(DataError, match="no column 'bodi'; its columns are 'body'"):
        list(read_documents(corpus.model_copy(update={"text_column": "bodi"})))


def test_the_held_out_text_of_hub_data_may_be_a_split_of_it():
    domain = Domain(name="d", path="someone/some", subset="en", validation="validation", text_column="body")
    held = domain.held_out_corpus
    assert held is not None
    assert (held.path, held.subset, held.split, held.text_column) == ("someone/some", "en", "validation", "body")
    assert domain.held_out_share == 0
    assert Domain(name="d", path="x.txt").held_out_share == 0.05


@pytest.mark.parametrize("path", ["x.txt", "someone/some"])
def test_another_data_set_of_the_hub_is_held_out_by_its_validation_split(path):
    held = Domain(name="d", path=path, validation="someone/other").held_out_corpus
    assert held is not None
    assert (held.path, held.split) == ("someone/other", "validation")


@pytest.mark.parametrize(
    ("there", "split"),
    [
        (["train", "validation", "test"], "validation"),
        (["test", "train"], "test"),
        (["train", "dev"], "dev"),
        (["dev", "train", "validation"], "validation"),
        (["train"], "train"),
    ],
)
def test_text_to_measure_on_is_the_same_split_of_the_hub_as_of_a_folder(monkeypatch, there, split):
    read = []

    def load(path, subset, **options):
        read.append(options["split"])
        return datasets.Dataset.from_list([{"body": text} for text in TEXTS])

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *args, **options: there)
    corpus = text_corpus("someone/some", "held_out")
    assert [document.text for document, _ in read_documents(corpus)] == TEXTS
    assert set(read) == {split}
    read.clear()
    assert text_corpus("someone/some", "general", splits=("train",)).split == "train"
    assert read == ["train"]


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


DAMAGED_COLUMN = (  # a Parquet file with a histogram of the wrong size; compressed by zlib, in base 85
    "c-"
    "oy(%}&BV5S~`jaNqzW+w3Mi5EB}V6~O>8f`=(7(Fpz!iN<&#qyZB|#A20r@F9E%4?coNpTx5VAHmrcFj2htWp{RVe)gN$%po@OEW"
    "+X}4xmFO3RCd8mPn9L<yI6GD7L@~b*3^%$_#+zhlx8mFZcVo)%#A?8^1q3m+u?~EXk4<#l@M%G@}F=eQ_lJ!~T<3REog0n@-"
    "QYY_kX%(nYQefW^`(k9h8#mxj7Q;kqgeVVPi1N)fcUpeROG{Z*l57R;!@7qt0j^TMK@fl&!Sy{J%G(S#WkCOKkLj-"
    "Y~o=2M|%KB?xL^1rTs5$cwhQR**Cx@t!00AcVLHk$`0Tj8JZ4`p4V)J4J(hS)>&(e7dmv5VEfg|>~@kV+MCH!ysk7^=22zwaN@qn"
    "o5Swb1BG>EIla%Fdmg_HwhkJ@u1lNnYaLk#)?RA)M;s_oQl%r}Z_0d_Sx&Kr4{jz*EEa=z8pWYn|b6tvwoD`KeoXbaQbvNNtp|xo"
    "looG!Jqlw(08*Y0$p_57nDE"
)


def test_a_damaged_column_of_parquet_gets_a_sentence_and_does_not_end_the_process(tmp_path):
    file = tmp_path / "a.parquet"
    file.write_bytes(zlib.decompress(base64.b85decode(DAMAGED_COLUMN)))
    for limits in (Limits(row_bytes=2**20, expansion=200), Limits(row_bytes=500, expansion=2)):
        corpus = Corpus(path=str(file), text_column="text")
        corpus.limited(limits)
        with pytest.raises(DataError, match=r"a\.parquet"):
            list(read_documents(corpus))


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
