"""Files that are one document each, files at a URL, and documents that teach a decoder to fill in."""

from __future__ import annotations

import copy
import gzip
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
import torch
from pypdf import PdfWriter
from pypdf.errors import DependencyError
from transformers import AddedToken

import tiny
from data_shapes_page import pdf
from everlearn.data import remote
from everlearn.data.corpus import Corpus, Domain
from everlearn.data.documents import check_corpus, corpus_fingerprint, read_documents
from everlearn.data.file_listing import files_of
from everlearn.data.fill_in_middle import TOKENS
from everlearn.data.folders import NO_DATA, inside
from everlearn.data.notes import notes_of, unread_files
from everlearn.data.packing import packer_of
from everlearn.data.prepare import prepare
from everlearn.data.readers import format_of, resolve_files
from everlearn.data.text_files import Limits
from everlearn.data.tokenize import Encoder
from everlearn.data.whole_files import html_text
from everlearn.errors import DataError, ModelError
from everlearn.files import PARTIAL
from two_processes import in_two_processes

PAGE = (
    "<html><head><title>On rows</title><style>p {}</style></head>"
    "<body><p>One &amp; two.</p><script>x()</script></body></html>"
)


def texts(path: Path | str, **keys: object) -> list[str]:
    return [document.text for document, _ in read_documents(Corpus(path=str(path), **keys))]  # type: ignore[arg-type]


def test_a_file_of_source_code_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "rows.py").write_text("def rows():\n    return 1\n")
    (tmp_path / "main.py").write_text("print(1)\n\nprint(2)\n")
    assert texts(tmp_path / "**/*.py") == ["def rows():\n    return 1\n", "print(1)\n\nprint(2)\n"]
    assert texts(tmp_path) == texts(tmp_path / "**/*.py")


def test_beside_tables_code_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a row"}\n')
    (tmp_path / "load.py").write_text("import datasets\n")
    (tmp_path / "README.md").write_text("# A data set\n")
    assert texts(tmp_path) == ["a row"]
    (note,) = inside(tmp_path, format_of).notes("d")
    assert "1 file of code or documents beside them, such as load.py, is not" in note


def test_code_with_a_table_in_it_is_not_guessed_at(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.html"):
        (tmp_path / name).write_text("x = 1")
    (tmp_path / "table.csv").write_text("text\na row\n")
    with pytest.raises(DataError, match=r"a\.py and table\.csv: .* such as `.*/\*\*/\*\.py` or `.*/\*\*/\*\.csv`"):
        texts(tmp_path)
    assert texts(tmp_path / "**/*.py") == ["x = 1", "x = 1"]
    assert texts(tmp_path / "**/*.csv") == ["a row"]


def test_notes_on_a_domain_of_sources_are_not_of_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text('{"text": "a row"}\n')
    (tmp_path / "inside").mkdir()
    for name in ("train.jsonl", "dev.jsonl"):
        (tmp_path / "inside" / name).write_text('{"text": "a row"}\n')
    monkeypatch.chdir(tmp_path)
    sources = [{"path": "train.jsonl"}, {"path": "inside"}]
    domain = Domain(name="d", sources=sources)  # type: ignore[arg-type]
    (note,) = notes_of(
        [domain], {"d": SimpleNamespace(counts={}, skipped=0, first_skipped="", undesired=0, end_held_out=False)}, 32
    )  # type: ignore[dict-item]
    assert note.startswith("Of 'd.inside' the split 'train' is read, which names of files or folders tell")
    assert "other splits are not (validation: dev.jsonl)" in note


def test_code_beside_json_is_not_guessed_at(tmp_path: Path) -> None:
    for name, content in {"words.json": '[{"text": "x"}]', "a.ts": "let a = 1", "README.md": "# X"}.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"Name them by a pattern, such as `.*/\*\*/\*\.ts`"):
        texts(tmp_path)
    assert texts(tmp_path / "**/*.ts") == ["let a = 1"]


def test_settings_in_a_tree_of_code_are_no_rows(tmp_path: Path) -> None:
    for name in ("package.json", "tsconfig.json", ".eslintrc.json", "jest.config.json"):
        (tmp_path / name).write_text('{"name": "x"}')
    with pytest.raises(DataError, match="has no column 'text'"):
        texts(tmp_path)  # without code they are read as tables are
    (tmp_path / "a.ts").write_text("let a = 1")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "b.rs").write_text("let b = 2;")
    assert texts(tmp_path) == ["let a = 1", "let b = 2;"]
    unread = inside(tmp_path, format_of).unread[NO_DATA[0]]
    assert [path.name for path in unread] == ["jest.config.json", "package.json", "tsconfig.json"]


def test_among_documents_a_card_is_one_and_names_of_splits_say_nothing(tmp_path: Path) -> None:
    for name in ("README.md", "train.py", "test_rows.py"):
        (tmp_path / name).write_text(f"of {name}")
    assert texts(tmp_path, documents="file") == ["of README.md", "of test_rows.py", "of train.py"]


def test_a_notebook_is_its_cells_without_what_they_printed(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Rows\n", "in order"]},
        {"cell_type": "code", "source": "x = 1", "outputs": [{"text": "never"}]},
        {"cell_type": "raw", "source": "never"},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert texts(tmp_path / "a.ipynb") == ["# Rows\nin order\n\nx = 1"]


def test_a_notebook_of_an_old_version_is_read_too(tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": ["# Rows"]}, {"cell_type": "code", "input": "x = 1", "outputs": []}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}))
    assert texts(tmp_path / "a.ipynb") == ["# Rows\n\nx = 1"]


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.html", '<meta charset="{}"><body>'), ("a.py", "# -*- coding: {} -*-\n"), ("a.html", "<?xml encoding='{}'?>")],
)
def test_a_document_is_read_in_the_encoding_that_it_declares(tmp_path: Path, name: str, begins: str) -> None:
    for encoding in ("iso-8859-1", "cp1252", "koi8-r"):
        said = "да" if encoding == "koi8-r" else "café"
        (tmp_path / name).write_bytes(f"{begins.format(encoding)}{said}".encode(encoding))
        assert texts(tmp_path / name)[0].endswith(said)
    for other in ("utf-8", "no-such"):
        (tmp_path / name).write_bytes(f"{begins.format(other)}\ncafé".encode("latin-1"))
        with pytest.raises(DataError, match=r"is not UTF-8 text: line [23], byte 3 .*\. Save it as UTF-8\."):
            texts(tmp_path / name)


def test_compressed_files_are_read_or_named(tmp_path: Path) -> None:
    cells = json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}]})
    for name, content in (("a.ipynb.gz", cells), ("b.html.gz", PAGE), ("c.py.gz", "y = 2")):
        (tmp_path / name).write_bytes(gzip.compress(content.encode()))
    assert texts(tmp_path) == ["x = 1", "On rows\nOne & two.", "y = 2"]
    (tmp_path / "d.pdf.gz").write_bytes(gzip.compress(b"%PDF"))
    for path in (tmp_path, tmp_path / "d.pdf.gz", tmp_path / "*.gz"):
        with pytest.raises(DataError, match=r"d\.pdf\.gz: PDF is compressed inside; unpack the outer \.gz"):
            texts(path)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"cells": 3}', '{"cells": [{}]}', '{"cells": [{"cell_type": "code", "source": 3}]}']
)
def test_what_is_no_notebook_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.ipynb").write_text(content)
    with pytest.raises(DataError, match=r"a\.ipynb is no notebook that can be read"):
        texts(tmp_path / "a.ipynb")


def test_a_web_page_is_its_visible_text(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE)
    assert texts(tmp_path / "a.html") == ["On rows\nOne & two."]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<p>Ten <b>r</b>ows,\n  <a href='x'>in order</a>!</p><p>Two</p>", "Ten rows, in order!\nTwo"),
        ("Code:<pre>def f():\n    <b>return</b> 1\n</pre>end", "Code:\ndef f():\n    return 1\nend"),
        ("<ul><li>a <i> b</i><li>c</ul>d<br>e<!-- never --><template>never</template>", "a b\nc\nd\ne"),
        ("", ""),
    ],
)
def test_lines_of_a_web_page_end_with_its_blocks(tmp_path: Path, body: str, text: str) -> None:
    (tmp_path / "a.html").write_text(f"<!DOCTYPE html><html><body>{body}</body></html>")
    assert html_text(tmp_path / "a.html", Limits()) == text


@pytest.mark.parametrize("piece", ["<a ", "<!-- ", '<a b="', "<![CDATA[", "</a ", "<script>"])
def test_a_hostile_page_takes_linear_time(tmp_path: Path, piece: str) -> None:
    (tmp_path / "a.html").write_text("<p>rows</p>" + piece * 300_000)
    assert texts(tmp_path / "a.html") == ["rows"]


def test_a_page_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<b>" * 100_000)
    with pytest.raises(DataError, match="nested too deeply"):
        texts(tmp_path / "a.html")


def test_a_pdf_file_is_its_text_layer(tmp_path: Path) -> None:
    pdf(tmp_path / "a.pdf", "Rows in order")
    assert texts(tmp_path / "a.pdf") == ["Rows in order"]
    (tmp_path / "b.pdf").write_bytes(b"no pdf")
    with pytest.raises(DataError, match=r"b\.pdf cannot be read as PDF"):
        texts(tmp_path / "b.pdf")


def test_a_pdf_file_without_text_or_with_a_password_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    scan, locked = tmp_path / "pages" / "scan.pdf", tmp_path / "locked.pdf"
    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    writer.write(scan)
    with pytest.raises(DataError, match=rf"its row is null or blank there\. {scan} has no text layer.*`ocrmypdf"):
        texts(scan)

    for name in "ab":
        pdf(tmp_path / "pages" / f"{name}.pdf", f"Rows in order of {name}, with so many words that a block is full")
    domain = Domain(name="d", path=str(tmp_path / "pages"), validation=None)
    part = prepare(domain, tiny.tokenizer(), "decoder", 8, seed=0, cache=tmp_path / "cache")
    (note,) = notes_of([domain], {"d": part}, 8)
    assert f"1 row of 'd' holds no text (null or blank) and was skipped. {scan} has no text layer" in note

    writer = PdfWriter(clone_from=tmp_path / "pages" / "a.pdf")
    writer.encrypt("secret")
    writer.write(locked)
    with pytest.raises(DataError, match=rf"{locked} is encrypted.*`qpdf --decrypt"):
        texts(locked)


def test_to_list_documents_does_not_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pdf(tmp_path / "a.pdf", "Rows in order")
    (tmp_path / "b.md").write_text("# A page\n\nof two lines\n")
    monkeypatch.setattr("pypdf.PdfReader", None)
    monkeypatch.setattr("everlearn.data.file_listing.read_rows", None)
    groups = files_of(Domain(name="d", path=str(tmp_path), documents="file"))
    assert {group.format: group.rows for group in groups} == {".md": 1, ".pdf": 1}


def test_a_pdf_file_whose_encryption_needs_another_package_is_encrypted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise DependencyError("cryptography>=3.1 is required for AES algorithm")

    pdf(tmp_path / "a.pdf", "Rows in order")
    monkeypatch.setattr("pypdf.PdfReader", refuse)
    with pytest.raises(DataError, match=r"a\.pdf is encrypted"):
        texts(tmp_path / "a.pdf")


@pytest.mark.parametrize(("module", "name"), [("lxml", "a.html"), ("pypdf", "a.pdf")])
def test_a_missing_reader_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    (tmp_path / name).write_text(PAGE)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(DataError, match=r"pip install 'everlearn\[documents\]'"):
        texts(tmp_path / name)


# -- URLs ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    """An empty file system in memory, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remote.fetched.cache_clear()
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)
    remote.fetched.cache_clear()


def test_a_url_is_read_like_a_file(store: fsspec.AbstractFileSystem) -> None:
    store.pipe("/a/rows.jsonl", b'{"text": "one"}\n{"text": "two"}\n')
    store.pipe("/a/more/rows.jsonl", b'{"text": "three"}\n')
    store.pipe("/a/picture.png", b"\0")
    assert texts("memory://a/rows.jsonl") == ["one", "two"]
    assert sorted(texts("memory://a/**/*.jsonl")) == ["one", "three", "two"]
    assert sorted(texts("memory://a")) == ["one", "three", "two"]
    check_corpus(Domain(name="a", path="memory://a/rows.jsonl", validation="memory://a/more/rows.jsonl"))
    with pytest.raises(DataError, match="trained on: nothing would be held out"):
        check_corpus(Domain(name="a", path="memory://a/rows.jsonl", validation="memory://a/rows.jsonl"))


def test_the_splits_of_a_folder_at_a_url_are_told_apart(store: fsspec.AbstractFileSystem) -> None:
    for split in ("train", "validation", "test"):
        store.pipe(f"/clone/{split}.jsonl", json.dumps({"text": split}).encode())
    corpus = Domain(name="d", path="memory://clone", validation="validation")
    check_corpus(corpus)
    assert corpus.held_out_corpus is not None
    assert [document.text for document, _ in read_documents(corpus.held_out_corpus)] == ["validation"]
    assert [(each.split, each.use) for each in files_of(corpus)] == [
        ("train", "read"),
        ("test", "another split than 'train'"),
        ("validation", "held out"),
    ]
    (note,) = unread_files([corpus])
    assert "are not (test: test.jsonl). Name a file" in note


def test_what_is_unchanged_is_fetched_once(store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe("/a.txt", b"one\n")
    before = corpus_fingerprint(Corpus(path="memory://a.txt"))
    remote.fetched.cache_clear()
    monkeypatch.setattr(type(store), "get_file", lambda *_, **__: pytest.fail("fetched again"))
    assert texts("memory://a.txt") == ["one"]
    assert corpus_fingerprint(Corpus(path="memory://a.txt")) == before
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(remote.cache().parent / "other"))
    remote.fetched.cache_clear()
    store.pipe("/a.txt", b"one\ntwo\n")
    assert texts("memory://a.txt") == ["one", "two"]


def test_what_cannot_be_fetched_leaves_nothing(
    store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pipe("/a.txt", b"one\n")

    def breaks(*_: object, **__: object) -> None:
        raise OSError("the connection was lost")

    monkeypatch.setattr(type(store), "get_file", breaks)
    with pytest.raises(DataError, match=r"`path: memory://a\.txt` cannot be read: the connection was lost\."):
        texts("memory://a.txt")
    assert not [path for path in remote.cache().rglob("*") if path.is_file()]


def _fetch_with_another(rank: int, folder: Path) -> None:
    """Download a file at the same time as the other process, and read it until both have."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    system = fsspec.filesystem("file")
    download = type(system).get_file

    def together(*arguments: object, **options: object) -> None:
        torch.distributed.barrier()
        download(*arguments, **options)

    type(system).get_file = together
    place = remote.fetched(f"file://{folder}/rows.txt", "path", format_of)
    assert isinstance(place, Path)
    before = place.stat().st_ino
    torch.distributed.barrier()
    (folder / f"{rank}.txt").write_text(f"{place} {before} {place.stat().st_ino} {place.read_text()}")


def test_two_processes_that_fetch_at_once_read_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("one")
    in_two_processes(_fetch_with_another, tmp_path)
    first, second = ((tmp_path / f"{rank}.txt").read_text().split() for rank in range(2))
    assert first == second
    assert first[1:] == [first[1], first[1], "one"], "the file of the first is not replaced under its reader"
    assert not list((tmp_path / "cache" / "everlearn" / "remote").glob(f"{PARTIAL}*"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://b/rows.txt", r"`path: memory://b/rows\.txt` is not there"),
        ("memory://b/*.txt", "matches no file"),
        ("memry://b/rows.txt", "there is no protocol 'memry://'. Did you mean 'memory'"),
        ("memory://b/rows.xyz", "is not there"),
    ],
)
def test_a_url_of_nothing_is_named(store: fsspec.AbstractFileSystem, url: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        resolve_files(url)


def test_an_archive_writes_nothing_outside_of_the_cache(store: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("rows.txt", "one")
        archive.writestr("../../../out.txt", "two")
    with pytest.raises(DataError, match=r"'\.\./\.\./\.\./out\.txt' would be kept outside of its folder"):
        texts(f"zip://::{tmp_path}/a.zip")
    assert not list(tmp_path.rglob("out.txt"))
    assert texts(f"zip://rows.txt::{tmp_path}/a.zip") == ["one"]


def test_a_query_is_no_part_of_a_files_name(store: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe("/a.txt?token=secret", b"one\n")
    monkeypatch.setattr(type(store), "isdir", lambda *_: True)  # as a server says of a file that has links
    monkeypatch.setattr(type(store), "get_file", lambda self, name, to: Path(to).write_bytes(self.cat(name)))
    assert texts("memory://a.txt?token=secret") == ["one"]
    sources = [{"path": "https://one.example/get?token=secret"}, {"path": "data-?.txt"}]
    assert Domain(name="a", sources=sources).source_names == ["get", "data"]  # type: ignore[arg-type]


# -- fill in the middle -------------------------------------------------------------------------------------------


def encoder() -> Encoder:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS[0]])
    return Encoder(tokenizer, "decoder")


def test_documents_are_cut_in_three_and_can_be_put_together_again() -> None:
    made, listed = encoder(), tiny.texts(200, seed=4)
    prefix, suffix, middle = (made.tokenizer.convert_tokens_to_ids(token) for token in TOKENS[0])
    corpus = Corpus(path="a.py", fill_in_middle=0.5)
    packer = packer_of(corpus, made, 16)
    rearranged = 0
    assert packer.rearrange is not None  # type: ignore[attr-defined]
    every = packer.rearrange(listed, made(listed))  # type: ignore[attr-defined]
    for text, ids in zip(listed, every, strict=True):
        if prefix not in ids:
            assert ids == made([text])[0]
            continue
        rearranged += 1
        assert ids[0] == prefix
        first, last = ids.index(suffix), ids.index(middle)
        parts = [ids[1:first], ids[last + 1 :], ids[first + 1 : last]]
        whole = "".join(made.tokenizer.decode(part, clean_up_tokenization_spaces=False) for part in parts)
        assert whole.replace(" ", "") == text.replace(" ", "")
    assert 70 < rearranged < 130
    assert every == packer.rearrange(listed, made(listed))  # type: ignore[attr-defined]


def test_held_out_text_is_read_as_it_is(tmp_path: Path) -> None:
    for number, text in enumerate(tiny.texts(60, seed=4)):
        (tmp_path / f"{number}.py").write_text(text)
    made, cache = encoder(), tmp_path / ".cache"
    domain = Domain(name="code", path=str(tmp_path), fill_in_middle=1.0, validation=0.2)
    ready = prepare(domain, made.tokenizer, "decoder", 16, seed=0, cache=cache)
    other = domain.model_copy(update={"fill_in_middle": 0.0})
    plain = prepare(other, made.tokenizer, "decoder", 16, seed=0, cache=cache)
    token = made.tokenizer.convert_tokens_to_ids(TOKENS[0][0])
    assert ready.validation is not None
    assert plain.validation is not None
    assert any(token in next(ready.train)["input_ids"] for _ in range(5))
    for block, same in zip(ready.validation.take(range(3)), plain.validation.take(range(3)), strict=True):
        assert block["input_ids"].tolist() == same["input_ids"].tolist()
    assert ready.fingerprint != plain.fingerprint
    assert ready.bytes_per_token == plain.bytes_per_token


def test_fill_in_middle_needs_a_decoder_with_tokens_for_it(tmp_path: Path) -> None:
    corpus = Corpus(path="a.py", fill_in_middle=0.5)
    with pytest.raises(ModelError, match="needs a tokenizer with tokens for prefix, suffix and middle"):
        packer_of(corpus, Encoder(tiny.tokenizer(), "decoder"), 16)
    with pytest.raises(DataError, match=r"`fill_in_middle: 0\.5`, which only a decoder learns"):
        packer_of(corpus, Encoder(tiny.tokenizer(), "encoder"), 16)
    with pytest.raises(ValueError, match="has answers: remove it"):
        Corpus(path="a.jsonl", target_column="answer", fill_in_middle=0.5)
