"""The corpora of `six-domains` that are made of repositories: a reader for each kind of file, cleaning, splitting."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from everlearn.errors import DataError
from everlearn_bench.suites import archives
from everlearn_bench.suites.cache import read_lines
from everlearn_bench.suites.six_domains import cleaning, making, readers

ABSTRACT = "We show that the method of the paper is better in all of its tasks. " * 4
TRIAL = """<!DOCTYPE article PUBLIC "-//NLM//DTD" "archivearticle.dtd">
<article><front><article-meta><title-group><article-title>A trial of <italic>one</italic> drug</article-title>
</title-group><abstract><sec><title>Background:</title><p>It is used &#x003e; 10 times.</p></sec>
<sec><title>Results</title><p>It helps.</p></sec></abstract></article-meta></front>
<body><sec><title>Introduction</title><p>Known since 1816 [<xref ref-type="bibr" rid="B1">1</xref>,<xref
ref-type="bibr" rid="B2">2</xref>] (Figure <xref ref-type="fig" rid="F1">1</xref>).</p><fig><caption><p>A drug.</p>
</caption></fig></sec><sec><title>Methods</title><sec><p>LONG</p></sec><p>Short, but behind.</p></sec></body></article>
"""
PAPERS = f"""<collection id="P99"><volume id="1"><paper id="1"><title><fixed-case>B</fixed-case>est &amp; worst</title>
<abstract>{ABSTRACT}</abstract><title_fr>Meilleur</title_fr><abstract_fr>{ABSTRACT}</abstract_fr></paper>
<paper id="2"><title>Short</title><abstract>We show it.</abstract></paper>
<paper id="3"><title>Autre</title><abstract>{"Nous montrons une nouvelle approche. " * 8}</abstract></paper>
<paper id="4"><title>Marked</title><language>fra</language><abstract>{ABSTRACT}</abstract></paper>
<paper id="5"><title>Bare</title></paper></volume></collection>"""
CONFERENCE = [
    {"title": "Nets", "abstract": ABSTRACT, "status": "Reject"},
    {"title": "Rows", "abstract": None},
    {"title": "Short", "abstract": "Of nets."},
]
WIKI = f"""<doc id="1" url="?curid=1" title="Town">
Town

Town () is a town. {"It is old. " * 30}
Sights.
There are none.

</doc>
<doc id="2" url="?curid=2" title="Redirect">
Redirect


</doc>
"""
LONG = "A line of prose that is as long as lines of prose are\nwont to be."
BOOK = f"""The Project Gutenberg EBook of Andy

Language: English

*** START OF THIS PROJECT GUTENBERG EBOOK ANDY ***

Produced by many
hands

         ANDY

            BY
       A WRITER

{LONG}

_Verses_
are short

*** END OF THIS PROJECT GUTENBERG EBOOK ANDY ***
The licence.
"""


def packed(path: Path, files: dict[str, str], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"repository-1234/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
        for info in more:
            tar.addfile(info)
    return path


def texts(documents) -> list[str]:
    return ["|".join(records) for records in documents]


def test_tables_and_lines(tmp_path):
    (tmp_path / "a.csv").write_text('"One, two\n\nthree",Four\n"He said ""five"""\n')
    assert texts(readers.cells(tmp_path / "a.csv")) == ["One, two\n\nthree", "Four", 'He said "five"']
    (tmp_path / "b.csv").write_text('label,sentence\n1,"Six\nseven"\n0\n0,Eight\n')
    assert texts(readers.sentences(tmp_path / "b.csv")) == ["Six\nseven", "Eight"]
    with pytest.raises(DataError, match=r"a\.csv has no column `sentence`"):
        list(readers.sentences(tmp_path / "a.csv"))
    (tmp_path / "c").write_text("a\nb\n\nc\nd\ne\n")
    assert texts(readers.lines(2, tmp_path / "c")) == ["a\nb", "c\nd", "e"]


def test_papers_and_conferences(tmp_path):
    path = packed(
        tmp_path / "a.tar.gz",
        {"data/xml_all/P99.xml": PAPERS, "data/xml_all/bad.xml": "<a>", "data/xml/P99.xml": PAPERS},
    )
    assert texts(readers.anthology(path)) == [f"Best & worst\n{ABSTRACT.strip()}"]
    rows = json.dumps(CONFERENCE)
    files = {
        "iclr/iclr2018.json": rows,
        "iclr/iclr2025.json": rows,
        "cvpr/cvpr2018.json": rows,
        "uai/uai2019.json": "{",
    }
    assert texts(readers.conferences(packed(path, files))) == [f"Nets\n{ABSTRACT.strip()}"]


def test_articles_on_trials(tmp_path):
    path = packed(
        tmp_path / "a.tar.gz",
        {
            "annotations/xml_files/PMC1.nxml": TRIAL.replace("LONG", "Much. " * 400),
            "annotations/xml_files/PMC2.nxml": "<article><front/></article>",
            "annotations/txt_files/PMC1.nxml": TRIAL,
        },
    )
    assert texts(readers.trials(path)) == [
        "A trial of one drug\nBackground: It is used > 10 times.\nResults: It helps.\nKnown since 1816."
    ]


def test_articles_and_books(tmp_path, monkeypatch):
    path = packed(tmp_path / "a.tar.gz", {"text/AA/wiki_00": WIKI, "text/Temp/wiki_00": WIKI})
    (town,) = texts(readers.encyclopedia(path))
    assert cleaning.clean(town).startswith("Town\n\nTown is a town. It is old. It")
    assert cleaning.clean(town).endswith("It is old.\nSights.\nThere are none.")
    assert len(readers.BOOKS) == 212  # two of the 213 have the same letters
    assert readers.book("Twain, Mark /A Connecticut Yankee in King Arthur's Court, Part 6.\r.txt") in readers.BOOKS
    monkeypatch.setattr(readers, "BOOKS", {readers.book("Alger, Horatio, Jr./Andy.txt"), readers.book("B/Bare.txt")})
    files = {"Alger, Horatio, Jr. /Andy.txt": BOOK, "Alger, Horatio, Jr./Other.txt": BOOK, "B/Bare.txt": "Nothing."}
    prose = LONG.replace("\n", " ")
    whole = f"ANDY\n\nBY\nA WRITER\n\n{prose}\n\nVerses\nare short"
    assert texts(readers.books(packed(path, files))) == [whole]
    monkeypatch.setattr(readers, "RECORD", 30)
    assert texts(readers.books(path)) == [f"ANDY\n\nBY\nA WRITER|{prose}|Verses\nare short"]


def test_an_archive_is_read_and_never_unpacked(tmp_path, monkeypatch):
    outside = tarfile.TarInfo("repository-1234/../../outside")
    link = tarfile.TarInfo("repository-1234/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    path = packed(folder / "a.tar.gz", {"file": "text"}, outside, link)
    assert list(archives.members(path, lambda name: True)) == [("file", b"text"), ("../../outside", b"")]
    assert [found.name for found in tmp_path.rglob("*")] == ["deep", "er", "a.tar.gz"]
    monkeypatch.setattr(archives, "MOST_FILE", 3)
    assert list(archives.members(path, lambda name: False)) == []
    with pytest.raises(DataError, match="unpacks to more than is read: 'file' has 4 bytes"):
        list(archives.members(path, lambda name: True))
    assert archives.broken(path) == ""
    monkeypatch.setattr(archives, "MOST", 3)
    assert archives.broken(path) == "it unpacks to more than 3 bytes"
    with pytest.raises(DataError, match="unpacks to more than is read"):
        list(archives.members(path, lambda name: False))
    path.write_bytes(path.read_bytes()[:-20])
    monkeypatch.undo()
    assert archives.broken(path).startswith("it is no whole archive (Compressed file ended")
    path.write_bytes(gzip.compress(b"no archive"))
    with pytest.raises(DataError, match=r"a\.tar\.gz cannot be read"):
        list(archives.members(path, lambda name: True))


def test_cleaning():
    assert cleaning.clean(" e\u0301&amp;\x07 b\t \ud800c \n\n\n\n d ") == "é& b c\n\nd"
    assert cleaning.key("The End!") == cleaning.key("the, end") != cleaning.key("the ends")
    assert cleaning.key("...") == ""


def test_splitting(tmp_path):
    shared = "one two three four five six seven eight nine ten eleven twelve thirteen"
    documents = [[f"Document {i} begins", f"and ends with {i}."] for i in range(100)]
    documents += [["Document 7 begins anew", "and ends with 7!"], [f"Yes: {shared}."], ["\x07"]]
    counts = cleaning.write(tmp_path, documents, cleaning.runs(shared), held_out=20)
    parts = {part: [row["text"] for row in read_lines(tmp_path / f"{part}.jsonl.gz")] for part in cleaning.PARTS}
    assert counts == {
        "read": 102, "shared with the end task": 1, "different": 100, "validation": 5, "test": 5, "train": 90
    }  # fmt: skip
    assert {part: len(found) for part, found in parts.items()} == {"validation": 10, "test": 10, "train": 180}
    assert sorted(text for found in parts.values() for text in found) == sorted(
        text for document in documents[:100] for text in document
    )
    assert cleaning.write(tmp_path, documents, set(), most=500)["train"] < 20
    assert sum(len(row["text"]) for part in cleaning.PARTS for row in read_lines(tmp_path / f"{part}.jsonl.gz")) <= 500


def test_what_is_held_out_is_not_learnt_word_for_word():
    words = [f"w{i}" for i in range(40)]
    learnt = [[" ".join(words)]]
    near, far = [" ".join(["new", *words[:30]])], [" ".join([*(f"v{i}" for i in range(80)), *words[:14]])]
    assert cleaning._clear_of(learnt, [near, far, ["short"]]) == [far, ["short"]]


def test_the_table():
    for corpus in making.CORPORA.values():
        assert all(len(source.commit) == 40 for source in corpus.sources)
    assert {name.rpartition("/")[0] for name in making.CORPORA} == {"domains", "D0"}
