"""Fuzz corpora and archives."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import random
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow
from pyarrow import parquet

from everlearn.data.corpus import Corpus
from everlearn.data.documents import check_corpus, read_documents
from everlearn.data.text_files import Limits
from everlearn.errors import EverlearnError
from everlearn.tasks.labelled import EndTask, check_test_apart, read_end_task
from everlearn_bench.suites.archives import broken, members
from everlearn_bench.suites.m2d2.corpus_folders import read_folder
from fuzz.harness import fuzz

# -- Whatever a corpus is: a valid one is read as it was written, from any place on, a damaged one gets a sentence -----


LETTERS = "abc xyz,;\"'\t\\{}[]:|#é漢😀\u2028\x0b\x85-0.1eE+nulltrue"
LINE_FORMATS = (".txt", ".md")
ALL = (*LINE_FORMATS, ".jsonl", ".json", ".csv", ".tsv", ".parquet")
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.compress(raw or b"\n", "zstd", asbytes=True),
}


def some_text(chance: random.Random) -> str:
    """Letters that formats care about; sometimes with line ends, sometimes long."""
    letters = LETTERS + ("\n" if chance.random() < 0.3 else "")
    length = chance.choice((1, 5, 20, 20, 80, 3000 if chance.random() < 0.05 else 40))
    return "".join(chance.choice(letters) for _ in range(length))


def encoded(suffix: str, texts: list[str | None], chance: random.Random) -> bytes:
    """Rows as a file of that format, in one of the ways in which programs write it."""
    end = chance.choice(("\n", "\n", "\r\n"))
    start = chance.choice(("", "", "\ufeff"))
    rows = [{"n": number, "text": text} for number, text in enumerate(texts)]
    if suffix == ".parquet":
        out = io.BytesIO()
        table = pyarrow.table({"n": list(range(len(texts))), "text": pyarrow.array(texts, pyarrow.string())})
        compression = chance.choice(("snappy", "zstd", "none"))
        parquet.write_table(table, out, row_group_size=chance.choice((1, 3, 1000)), compression=compression)
        return out.getvalue()
    if suffix in LINE_FORMATS:
        return (start + "".join(f"{text or ''}{end}" for text in texts)).encode()
    ascii_ = chance.random() < 0.5
    if suffix == ".jsonl":
        return (start + "".join(json.dumps(row, ensure_ascii=ascii_) + end for row in rows)).encode()
    if suffix == ".json":
        return (start + json.dumps(rows, ensure_ascii=ascii_, indent=chance.choice((None, 1)))).encode()
    out_text = io.StringIO()
    quoting = chance.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    table_ = csv.writer(out_text, delimiter="\t" if suffix == ".tsv" else ",", lineterminator=end, quoting=quoting)
    table_.writerow(["n", "text"])
    table_.writerows([row["n"], row["text"]] for row in rows)
    return (start + out_text.getvalue()).encode()


def readable(suffix: str, chance: random.Random) -> list[str | None]:
    """Texts that the format can hold."""
    texts = [some_text(chance) if chance.random() < 0.95 else None for _ in range(chance.randint(1, 12))]
    if suffix in LINE_FORMATS:
        return [(text or "").replace("\n", " ").replace("\ufeff", "") for text in texts]
    return texts


def test_what_was_written_is_read(tmp_path: Path) -> None:
    def case(chance: random.Random) -> None:
        suffix = chance.choice(ALL)
        texts = readable(suffix, chance)
        packed = "" if suffix == ".parquet" else chance.choice(list(PACKED))
        path = tmp_path / f"a{suffix}{packed}"
        path.write_bytes(PACKED[packed](encoded(suffix, texts, chance)))
        corpus = Corpus(path=str(path))
        expected = [text for text in texts if text and text.strip()]
        found, said = [], ""
        try:
            found = list(read_documents(corpus))
        except EverlearnError as error:
            said = str(error)
        assert ("is empty" in said) == (not expected), said
        if not expected:
            return
        assert [document.text for document, _ in found] == expected
        place = chance.randrange(len(found))
        position = json.loads(json.dumps(found[place][1]))
        rest = [document.text for document, _ in read_documents(corpus, position=position)]
        assert rest == expected[place + 1 :]
        path.unlink()

    fuzz("valid corpora", 120, case)


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """Bytes with one to three things wrong."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        at, until = sorted((chance.randint(0, len(raw)), chance.randint(0, len(raw))))
        piece = raw[at:until][:200]
        raw = chance.choice(
            (
                lambda raw, at, until, piece: raw[:at],
                lambda raw, at, until, piece: raw[at:],
                lambda raw, at, until, piece: raw[:at] + raw[min(until, at + 50) :],
                lambda raw, at, until, piece: raw[:at] + piece * 3 + raw[at:],
                lambda raw, at, until, piece: raw[:at] + bytes([chance.randrange(256)]) + raw[at + 1 :],
                lambda raw, at, until, piece: raw + chance.randbytes(30),
                lambda raw, at, until, piece: raw + raw,
                lambda raw, at, until, piece: (
                    raw[:at]
                    + chance.choice(
                        (b"\0", b"\xff\xfe", b"\r", b'"', b"{", b"[" * 3000, b"NaN", b"\\u", b"\xed\xa0\x80")
                    )
                    + raw[at:]
                ),
                lambda raw, at, until, piece: raw.decode("utf-8", "replace").encode(
                    chance.choice(("utf-16", "utf-32", "latin-1", "cp1252")), "replace"
                ),
            )
        )(raw, at, until, piece)
    return raw


def test_damage_gets_a_sentence(tmp_path: Path) -> None:
    def case(chance: random.Random) -> None:
        suffix = chance.choice(ALL)
        raw = encoded(suffix, readable(suffix, chance), chance)
        packed = "" if suffix == ".parquet" else chance.choice(list(PACKED))
        before = chance.random() < 0.5
        raw = PACKED[packed](damaged(raw, chance) if before else raw)
        raw = raw if before else damaged(raw, chance)
        # Now and then under another name than its content has.
        name = f"a{suffix}{packed}" if chance.random() < 0.85 else f"a{chance.choice(ALL)}{chance.choice(list(PACKED))}"
        path = tmp_path / name
        path.write_bytes(raw)
        column = chance.choice(("text", "text", "text", "n", "other"))
        corpus = Corpus(path=str(path), text_column=column, documents=chance.choice(("line", "file")))
        corpus.limited(Limits(row_bytes=chance.choice((2**20, 500)), expansion=chance.choice((200, 2))))
        for read in (lambda: check_corpus(corpus), lambda: list(read_documents(corpus))):
            said = ""
            try:
                read()
            except EverlearnError as error:
                said = str(error)
            assert len(said) < 2000, f"a sentence, not a file: {said[:300]}"
        path.unlink()

    fuzz("damaged corpora", 200, case)


def test_labels_get_a_sentence(tmp_path: Path) -> None:
    values = ("pos", "Pos", "neg", " neg", "", None, 0, 1, 1.0, "1", "1.0", 0.5, "0.5", True, [], {}, float("nan"), "é")

    def case(chance: random.Random) -> None:
        pool = chance.sample(values, chance.randint(1, 4))
        for part in ("train", "test"):
            rows = [
                {
                    "text": some_text(chance) if chance.random() < 0.97 else chance.choice((None, 3)),
                    "label": chance.choice(pool),
                }
                for _ in range(chance.randint(0, 12))
            ]
            (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        with contextlib.suppress(EverlearnError):
            task = EndTask(name="t", train=str(tmp_path / "train.jsonl"), test=str(tmp_path / "test.jsonl"))
            check_test_apart(task)
            read_end_task(task)

    fuzz("labels", 100, case)


# -- Tarballs as nobody packs them: their texts are read, or one sentence says what is wrong ---------------------------


PARTS = [f"cs.CL/{part}.txt" for part in ("train", "valid", "test")]
NAMES = [*PARTS, "../up", "/absolute", "a" * 300, "é", "", ".", "cs.CL", "cs.CL/train.txt/x", "\udcff"]
KINDS = [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE]
KINDS += [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"Z"]
PAX = [{}, {"path": "cs.CL/train.txt"}, {"size": "9" * 30}, {"GNU.sparse.map": "0,9,9"}, {"GNU.sparse.major": "1"}]
PAX += [{"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"}, {"comment": "é" * 400}]


def packed(chance: random.Random) -> bytes:
    """A tarball of some files; now and then a header says another kind, or another size, than its content has."""
    out = io.BytesIO()
    form = chance.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name in [*chance.sample(PARTS, chance.randint(0, 3)), *chance.choices(NAMES, k=chance.randint(0, 3))]:
            content = "\n".join(some_text(chance) for _ in range(chance.randint(0, 4))).encode()
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(content), chance.choice(PAX)
            if chance.random() < 0.3:
                info.type, info.linkname = chance.choice(KINDS), chance.choice(NAMES)
            with contextlib.suppress(ValueError):  # what this format cannot write
                tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_archives(tmp_path: Path) -> None:
    def case(chance: random.Random) -> None:
        raw = packed(chance)
        raw = damaged(raw, chance) if chance.random() < 0.5 else raw
        raw = gzip.compress(raw, 1)
        path = tmp_path / "cs.CL.tar.gz"
        path.write_bytes(damaged(raw, chance) if chance.random() < 0.3 else raw)
        tracemalloc.start()
        try:
            for part, read in read_folder(tmp_path).leaves[0].texts.items():
                with contextlib.suppress(EverlearnError):
                    assert all(line.strip() for line in read()), part
            with contextlib.suppress(EverlearnError):
                list(members(path, lambda name: True))
            broken(path)
            assert tracemalloc.get_traced_memory()[1] < 2**24, "takes much memory"
        finally:
            tracemalloc.stop()

    fuzz("archives", 80, case)
