"""The suite `six-domains`: its end tasks and corpora, how each is made, proxies, orders, recipes."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench_suite import keys_of
from everlearn.config import addresses
from everlearn.config.recipe import Recipe, load, parse
from everlearn.errors import DataError, RecipeError
from everlearn.files import read_json
from everlearn.tasks.labelled import EndTask, read_end_task
from everlearn_bench import suites
from everlearn_bench.suites import archives
from everlearn_bench.suites import six_domains as suite
from everlearn_bench.suites.cache import read_lines
from everlearn_bench.suites.six_domains import cache, cleaning, corpora, proxy_corpora, readers, tasks
from everlearn_bench.suites.six_domains.suite import addresses as six_domains_addresses

RECIPES = Path(__file__).parents[2] / "recipes" / "six-domains"
BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
DATA = Path(os.environ.get(suite.VARIABLE, BESIDE))
needs_data = pytest.mark.skipif(not (DATA / tasks.RAW).is_dir(), reason=f"no data: set {suite.VARIABLE}")
PUBLISHED = {
    "restaurant": {"positive": 2094, "negative": 779, "neutral": 579},
    "phone": {"positive": 203, "negative": 36},
    "camera": {"positive": 197, "negative": 33},
}
"""Training examples by label, where the source states them."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """One cache for the module, none of the user's."""
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path_factory.getbasetemp() / "six-domains"))
    monkeypatch.delenv(suite.VARIABLE, raising=False)


def packed(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()))


@pytest.fixture
def invented(tmp_path):
    """A folder with small corpora and no end tasks."""
    data = tmp_path / "data"
    for corpus in sorted({proxy.corpus for proxy in suite.PROXIES.values()}):
        for part in corpora.PARTS:
            rows = [
                {"text": f"{corpus} {part} {i}\u2028 same line", "category": ("camera_photo", "electronics")[i % 2]}
                for i in range(6)
            ]
            packed(data / f"domains/{corpus}/{part}.jsonl.gz", rows)
    for source in corpora.GENERAL_SOURCES:
        for part in corpora.PARTS:
            packed(data / f"D0/{source}/{part}.jsonl.gz", [{"text": f"{source} {part} {i}"} for i in range(5)])
    return data


SIX = suites.find_suite("six-domains")


def parsed(*args: Any, **options: Any) -> Recipe:
    return parse(keys_of(SIX, *args, **options))


def texts(path: Path) -> list[str]:
    return [row["text"] for row in cache.read_lines(path)]


@needs_data
@pytest.mark.parametrize("name", SIX.domains)
def test_the_end_tasks_are_the_papers(name):
    files = [suite.task_file(name, part, DATA) for part in tasks.PARTS]
    train, test = (list(cache.read_lines(path)) for path in files)
    assert (len(train), len(test)) == suite.SIZES[name]
    labels = Counter(row["label"] for row in train)
    assert labels == PUBLISHED.get(name, labels)
    raw = next(task for task in SIX.template()["end_tasks"] if task["name"] == name)
    task = EndTask(**raw | dict(zip(tasks.PARTS, map(str, files), strict=True)))
    learnt, measured = read_end_task(task)
    assert (len(learnt), len(measured)) == suite.SIZES[name]
    known = (measured.labels < len(learnt.label_names)).mean()
    assert known == pytest.approx(suite.CEILING.get(name, 1.0))
    if name == "pubmed":
        assert len(learnt.label_names) == 7
        assert round(100 * known, 2) == 88.48
    if task.text_pair_column is not None:
        assert learnt.pairs is not None
        assert train[0]["text"] == f"{learnt.texts[0]} </s>{learnt.pairs[0]}"


def test_what_is_held_out_comes_first_of_each_label():
    rows = [{"text": str(i), "label": label} for i, label in enumerate("abaabbaac")]
    stays, moved = tasks.hold_out(rows, 0.5, 2)  # int(9 · 0.5) // 2 = 2
    assert [row["text"] for row in moved] == ["0", "1", "2", "4", "8"]
    assert [row["text"] for row in stays] == ["3", "5", "6", "7"]


def test_settings_of_the_released_code():
    raw = {task["name"]: task for task in SIX.template()["end_tasks"]}
    assert {name: task["epochs"] for name, task in raw.items()} == {
        "restaurant": 5, "acl": 10, "ai": 5, "phone": 15, "pubmed": 10, "camera": 15,
    }  # fmt: skip
    assert {(t["learning_rate"], t["batch_size"], t["max_length"]) for t in raw.values()} == {(3e-5, 16, 164)}
    assert (raw["pubmed"]["f1"], raw["pubmed"]["unseen_labels"]) == ("micro", "wrong")
    pairs = {name for name, task in raw.items() if task.get("text_pair_column")}
    assert pairs == {name for name, task in tasks.TASKS.items() if task.train[0].endswith(".json")}


def test_other_files_than_the_published_ones_are_refused(tmp_path):
    for raw in (*tasks.TASKS["phone"].train, *tasks.TASKS["phone"].test):
        (tmp_path / tasks.RAW).mkdir(exist_ok=True)
        row = {"term": "screen", "sentence": "good .", "polarity": "+"}
        (tmp_path / tasks.RAW / raw).write_text(json.dumps({"0": row}))
    with pytest.raises(DataError, match="'phone' would have 3 training and 3 test examples instead of 239 and 553"):
        suite.task_file("phone", "train", tmp_path)
    (tmp_path / tasks.RAW / "Nokia6610.dev.json").write_text("[]")
    with pytest.raises(DataError, match="is not what was published"):
        suite.task_file("phone", "train", tmp_path)
    with pytest.raises(DataError, match=r"restaurant14.train.json.gz' .* for the end task 'restaurant'"):
        suite.task_file("restaurant", "train", tmp_path)


def test_phone_and_camera_are_different_text(invented):
    found = {name: set(texts(suite.proxy_file(name, "train", invented))) for name in ("phone", "camera")}
    assert [len(part) for part in found.values()] == [3, 3]
    assert not found["phone"] & found["camera"]
    assert suite.proxy_file("acl", "validation", invented) == invented / "domains/acl_papers/validation.jsonl.gz"


def test_what_is_derived_is_made_once_and_again_when_damaged(invented):
    path = suite.general_file("train", invented)
    first = path.read_bytes()
    assert Counter(text.split()[0] for text in texts(path)) == {"wikipedia": 5, "books": 5}
    made = path.stat().st_mtime_ns
    assert suite.general_file("train", invented).stat().st_mtime_ns == made
    path.write_text("damaged")
    assert suite.general_file("train", invented).read_bytes() == first
    packed(invented / "D0/books/train.jsonl.gz", [{"text": "another"}])
    assert suite.general_file("train", invented) != path
    assert path.is_file()  # an older run still finds its own


def test_orders():
    assert all(sorted(order) == sorted(SIX.domains) for order in SIX.orders.values())
    assert len(set(SIX.orders.values())) == 5
    assert SIX.chosen(3)[0] == "camera"
    assert SIX.chosen(("acl",)) == ("acl",)


def test_a_recipe_of_proxies(invented):
    made = parsed(
        2, invented, ["sequential", {"name": "das"}], tokens=50_000, end_tasks=None, grid={"importance_samples": 7},
        data={"block_size": 64},
        train={"bf16": True, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    )  # fmt: skip
    assert [domain.name for domain in made.domains] == list(SIX.orders[2])
    assert made.train["max_steps"] == 50_000 // (8 * 2 * 64)
    assert made.train["warmup_steps"] == 5
    assert made.train["bf16"]
    assert made.method[1]["samples"] == 7
    assert "samples" not in made.method[0]
    assert made.general is not None
    assert made.general.held_out_corpus is not None
    assert len(made.run.notes) == 6
    assert all(note.startswith("Proxy corpus") for note in made.run.notes)


def test_a_recipe_of_own_text_needs_no_folder(tmp_path):
    for name in ("a.txt", "b.txt", "general.txt"):
        (tmp_path / name).write_text("text\n")
    own = {"acl": {"path": str(tmp_path / "a.txt")}, "ai": {"path": str(tmp_path / "b.txt"), "validation": 0.2}}
    made = parsed(("ai", "acl"), domains=own, general=str(tmp_path / "general.txt"), end_tasks=None)
    assert [domain.held_out_share for domain in made.domains] == [0.2, 0.05]
    assert made.run.notes == ()
    assert made.train["max_steps"] == 2500
    with pytest.raises(DataError, match="Set EVERLEARN_SIX_DOMAINS, or `--data` of `everlearn bench`, to a folder"):
        parsed(("ai", "acl"), domains=own, end_tasks=None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domains": {"phones": {"path": "x"}}}, "`domains.phones` in the settings: .*Did you mean 'phone'"),
        ({"tokens": 100}, "less than one step of 248 rows of 164 tokens"),
        ({"place": Path("/no/such")}, "`data` is '/no/such', and there is no such folder.*EVERLEARN_SIX_DOMAINS"),
    ],
)
def test_mistakes_are_sentences(options, words):
    with pytest.raises((RecipeError, DataError), match=words):
        keys_of(SIX, **options)


def test_a_missing_corpus_names_its_file_and_key(invented):
    (invented / "domains/amazon_electronics/train.jsonl.gz").unlink()
    with pytest.raises(
        DataError, match=r"amazon_electronics/train.jsonl.gz' .* the domain 'phone'.*`domains.phone.path`"
    ):
        keys_of(SIX, 1, invented, end_tasks=None)
    (invented / "D0/books/validation.jsonl.gz").unlink()
    with pytest.raises(DataError, match=r"D0/books/validation.jsonl.gz' .* the general text.*`general.path`"):
        suite.general_file("train", invented)


def test_addresses(invented, monkeypatch):
    with pytest.raises(DataError, match="EVERLEARN_SIX_DOMAINS"):
        suites.locate("six-domains/phone/train.jsonl")
    monkeypatch.setenv(suite.VARIABLE, str(invented))
    assert suites.locate("six-domains/phone/train.jsonl") == suite.proxy_file("phone", "train", invented)
    assert suites.locate("six-domains/general/validation.jsonl") == suite.general_file("validation", invented)
    with pytest.raises(DataError, match=tasks.RAW):
        suites.locate("six-domains/tasks/ai/test.jsonl")
    with pytest.raises(RecipeError, match=r"Did you mean 'phone/train.jsonl'"):
        suites.locate("six-domains/phone/trian.jsonl")
    with pytest.raises(RecipeError, match="Did you mean 'six-domains'"):
        suites.locate("six-domain/phone/train.jsonl")


@pytest.mark.parametrize("name", ["das", "sequential"])
def test_shipped_recipes_load(name, monkeypatch):
    """Without the data: every address is one of the suite's."""
    asked = []
    monkeypatch.setattr(addresses, "locate", lambda inside: asked.append(inside) or Path("/") / inside)
    recipe = load(RECIPES / f"{name}.yaml")
    assert recipe.method[0]["name"] == name
    assert set(asked) == {f"six-domains/{inside}" for inside in six_domains_addresses()}
    assert f"everlearn run recipes/six-domains/{name}.yaml" in (RECIPES / f"{name}.yaml").read_text()


@needs_data
@pytest.mark.parametrize("name", ["das", "sequential"])
def test_shipped_recipes_are_the_papers_setting(name, monkeypatch):
    monkeypatch.setenv(suite.VARIABLE, str(DATA))
    aspects = {task: {"text_column": "text", "text_pair_column": None} for task in ("restaurant", "phone", "camera")}
    keys = keys_of(
        SIX, 0, DATA, [name], model="FacebookAI/roberta-base", grid={"importance_samples": 10_000},
        train={"bf16": True}, end_tasks=aspects,
    )  # fmt: skip
    keys["run"] = {"name": f"six-domains-{name}", "notes": keys["run"]["notes"]}
    assert load(RECIPES / f"{name}.yaml") == parse(keys)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path))
    assert suite.cache_folder() == tmp_path / "six-domains"
    monkeypatch.delenv("EVERLEARN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert suite.cache_folder() == tmp_path / "xdg" / "everlearn" / "six-domains"


def test_seals_list_both_parts(invented):
    folder = suite.proxy_file("camera", "train", invented).parent
    assert set(read_json(folder / "seal.json")) == {"train.jsonl", "validation.jsonl"}


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


def tarball(path: Path, files: dict[str, str], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"repository-1234/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
        for info in more:
            tar.addfile(info)
    return path


def joined(documents) -> list[str]:
    return ["|".join(records) for records in documents]


def test_tables_and_lines(tmp_path):
    (tmp_path / "a.csv").write_text('"One, two\n\nthree",Four\n"He said ""five"""\n')
    assert joined(readers.cells(tmp_path / "a.csv")) == ["One, two\n\nthree", "Four", 'He said "five"']
    (tmp_path / "b.csv").write_text('label,sentence\n1,"Six\nseven"\n0\n0,Eight\n')
    assert joined(readers.sentences(tmp_path / "b.csv")) == ["Six\nseven", "Eight"]
    with pytest.raises(DataError, match=r"a\.csv has no column `sentence`"):
        list(readers.sentences(tmp_path / "a.csv"))
    (tmp_path / "c").write_text("a\nb\n\nc\nd\ne\n")
    assert joined(readers.lines(2, tmp_path / "c")) == ["a\nb", "c\nd", "e"]


def test_papers_and_conferences(tmp_path):
    path = tarball(
        tmp_path / "a.tar.gz",
        {"data/xml_all/P99.xml": PAPERS, "data/xml_all/bad.xml": "<a>", "data/xml/P99.xml": PAPERS},
    )
    assert joined(readers.anthology(path)) == [f"Best & worst\n{ABSTRACT.strip()}"]
    rows = json.dumps(CONFERENCE)
    files = {
        "iclr/iclr2018.json": rows,
        "iclr/iclr2025.json": rows,
        "cvpr/cvpr2018.json": rows,
        "uai/uai2019.json": "{",
    }
    assert joined(readers.conferences(tarball(path, files))) == [f"Nets\n{ABSTRACT.strip()}"]


def test_articles_on_trials(tmp_path):
    path = tarball(
        tmp_path / "a.tar.gz",
        {
            "annotations/xml_files/PMC1.nxml": TRIAL.replace("LONG", "Much. " * 400),
            "annotations/xml_files/PMC2.nxml": "<article><front/></article>",
            "annotations/txt_files/PMC1.nxml": TRIAL,
        },
    )
    assert joined(readers.trials(path)) == [
        "A trial of one drug\nBackground: It is used > 10 times.\nResults: It helps.\nKnown since 1816."
    ]


def test_articles_and_books(tmp_path, monkeypatch):
    path = tarball(tmp_path / "a.tar.gz", {"text/AA/wiki_00": WIKI, "text/Temp/wiki_00": WIKI})
    (town,) = joined(readers.encyclopedia(path))
    assert cleaning.clean(town).startswith("Town\n\nTown is a town. It is old. It")
    assert cleaning.clean(town).endswith("It is old.\nSights.\nThere are none.")
    assert len(readers.BOOKS) == 212  # two of the 213 have the same letters
    assert readers.book("Twain, Mark /A Connecticut Yankee in King Arthur's Court, Part 6.\r.txt") in readers.BOOKS
    monkeypatch.setattr(readers, "BOOKS", {readers.book("Alger, Horatio, Jr./Andy.txt"), readers.book("B/Bare.txt")})
    files = {"Alger, Horatio, Jr. /Andy.txt": BOOK, "Alger, Horatio, Jr./Other.txt": BOOK, "B/Bare.txt": "Nothing."}
    prose = LONG.replace("\n", " ")
    whole = f"ANDY\n\nBY\nA WRITER\n\n{prose}\n\nVerses\nare short"
    assert joined(readers.books(tarball(path, files))) == [whole]
    monkeypatch.setattr(readers, "RECORD", 30)
    assert joined(readers.books(path)) == [f"ANDY\n\nBY\nA WRITER|{prose}|Verses\nare short"]


def test_an_archive_is_read_and_never_unpacked(tmp_path, monkeypatch):
    outside = tarfile.TarInfo("repository-1234/../../outside")
    link = tarfile.TarInfo("repository-1234/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    path = tarball(folder / "a.tar.gz", {"file": "text"}, outside, link)
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
    for corpus in proxy_corpora.CORPORA.values():
        assert all(len(source.commit) == 40 for source in corpus.sources)
    assert {name.rpartition("/")[0] for name in proxy_corpora.CORPORA} == {"domains", "D0"}
