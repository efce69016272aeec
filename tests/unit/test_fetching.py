"""Fetching a suite's data from a server of our own, and archives that ask for too much memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import runpy
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench_suite import keys_of
from everlearn.errors import DataError
from everlearn.files import read_json
from everlearn_bench.suites import SUITES, Suite, archives, fetching, overlay_of
from everlearn_bench.suites.cache import FETCHED, cache_folder, data_folder, read_lines
from everlearn_bench.suites.code.files import FILES as CODE_FILES
from everlearn_bench.suites.fetching import RECORD, fetch
from everlearn_bench.suites.m2d2.corpus_folders import read_folder
from everlearn_bench.suites.six_domains import proxy_corpora, readers
from everlearn_bench.suites.sources import Fetchable

FILES = {"/a/one.json": b"[1]", "/a/two.json": b"[2]" * 1000}
ASKED: list[str] = []


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        content = FILES.get(self.path)
        if content is None:
            self.send_error(404, "Not Found")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) + (100 if "cut" in self.path else 0)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    ASKED.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def suite_of(*sources: Fetchable) -> Suite:
    made = Suite()
    made.name, made.sources, made.by_hand = "own", sources, "Or clone it."
    return made


def source(address: str, path: str, sha256: str = "") -> Fetchable:
    return Fetchable(f"in/{Path(path).name}", f"{address}{path}", "MIT", sha256)


def test_files_are_fetched_once_and_found_by_later_calls(address: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(FILES["/a/one.json"]).hexdigest()
    own, said = suite_of(source(address, "/a/one.json", digest), source(address, "/a/two.json")), []
    folder = fetch(own, said.append)
    host = address.removeprefix("http://")
    assert said == [f"Fetching in/one.json from {host} (1 of 2)", f"Fetching in/two.json from {host} (2 of 2)"]
    assert (folder / "in/two.json").read_bytes() == FILES["/a/two.json"]
    record = read_json(folder / RECORD)
    assert record["in/two.json"] == {
        "address": f"{address}/a/two.json",
        "sha256": hashlib.sha256(FILES["/a/two.json"]).hexdigest(),
        "bytes": 3000,
    }
    assert not [path for path in folder.rglob("*") if "partial" in path.name]
    ASKED.clear()
    assert fetch(own) == folder
    assert ASKED == []
    assert data_folder("own", "EVERLEARN_NOTHING", "how") == folder.resolve()
    (folder / "in/two.json").write_bytes(b"spoilt")
    fetch(own)
    assert ASKED == ["/a/two.json"]
    assert (folder / "in/two.json").read_bytes() == FILES["/a/two.json"]


def test_a_file_that_changed_since_the_first_fetch_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = suite_of(source(address, "/a/two.json"))
    folder = fetch(own)
    (folder / "in/two.json").unlink()
    monkeypatch.setitem(FILES, "/a/two.json", b"another")
    with pytest.raises(DataError, match=r"two.json holds another file .* in/two.json: its SHA-256 is .*Or clone it\."):
        fetch(own)
    assert not (folder / "in/two.json").exists()


@pytest.mark.parametrize(
    ("path", "sha256", "sentence"),
    [
        ("/a/none.json", "", r"/a/none.json could not be fetched: Not Found\."),
        ("/a/cut.json", "", r"/a/cut.json could not be fetched: .*"),
        ("/a/one.json", "0" * 64, r"/a/one.json holds another file than the one that is known as in/one.json"),
    ],
)
def test_what_cannot_be_had_is_said_and_the_rest_is_kept(
    address: str, monkeypatch: pytest.MonkeyPatch, path: str, sha256: str, sentence: str
) -> None:
    monkeypatch.setitem(FILES, "/a/cut.json", b"half")
    own = suite_of(source(address, path, sha256), source(address, "/a/two.json"))
    with pytest.raises(DataError, match=sentence) as caught:
        fetch(own)
    assert "the files so far are in " in str(caught.value)
    assert str(caught.value).endswith("Or clone it.")
    place = Path(str(caught.value).split("so far are in ")[1].split(". Or")[0])
    assert [found.name for found in (place / "in").iterdir()] == ["two.json"]


ROWS = b'{"query": "a", "gold": 0}\n{"query": "b", "gold": 1}\n'


@pytest.mark.parametrize(
    ("content", "known", "sentence"),
    [
        (ROWS, {"rows": 3}, r"known as in/rows.jsonl: it has 2 rows, not 3\."),
        (ROWS, {"rows": 2, "columns": ("query", "choices")}, r"a row of it has no `choices`\."),
        (b"<html>", {"rows": 2}, r"it is no file of JSON lines \(.*\)\."),
    ],
)
def test_rows_that_are_not_those_that_are_known(
    address: str, monkeypatch: pytest.MonkeyPatch, content: bytes, known: dict, sentence: str
) -> None:
    monkeypatch.setitem(FILES, "/a/rows.jsonl", content)
    wanted = Fetchable("in/rows.jsonl", f"{address}/a/rows.jsonl", "MIT", **known)
    with pytest.raises(DataError, match=sentence):
        fetch(suite_of(wanted))
    monkeypatch.setitem(FILES, "/a/rows.jsonl", ROWS)
    fetch(suite_of(replace(wanted, rows=2, columns=("query", "gold"))))


def test_what_is_fetched_for_code_is_found(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERLEARN_CODE", raising=False)
    suite = SUITES["code"]
    here = []
    for each in suite.sources:
        rows = "".join(json.dumps(dict.fromkeys(each.columns, "")) + "\n" for _ in range(each.rows)).encode()
        path = f"/{each.path}"
        monkeypatch.setitem(FILES, path, gzip.compress(rows) if path.endswith(".gz") else rows)
        here.append(replace(each, address=f"{address}{path}"))
    monkeypatch.setattr(suite, "sources", tuple(here))
    folder = fetch(suite)
    for task in CODE_FILES:
        assert suite.locate(f"{task}.jsonl") in {(folder / each.path).resolve() for each in here}


def test_phone_and_camera_are_made_of_what_is_fetched(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERLEARN_SIX_DOMAINS", raising=False)
    shared = "one two three four five six seven eight nine ten eleven twelve thirteen"
    task = json.dumps({"0": {"term": "t", "sentence": f"Yes, {shared}!", "polarity": "positive"}}).encode()
    plain = "\n".join(f"Review {i} of it &amp; more\x07  blanks" for i in range(30)).encode()
    files = {
        "electronics.task.unlabel": plain + f"\nReview 7 of it & more blanks\nSo: {shared} again".encode(),
        "electronics.task.train": b"0\tbad thing\n1\tgood thing",
        "camera_photo.task.unlabel": plain,
        "camera_photo.task.train": b"a camera without a label",
    }
    suite, here = SUITES["six-domains"], []
    for each in suite.sources:
        name = Path(each.path).name
        if not each.path.startswith("reviews/") and not name.startswith(("Nokia", "Canon", "Nikon")):
            continue
        monkeypatch.setitem(FILES, f"/{name}", files.get(name, task))
        here.append(replace(each, address=f"{address}/{name}", sha256=""))
    monkeypatch.setattr(suite, "sources", tuple(here))
    fetch(suite)
    parts = [list(read_lines(suite.locate(f"phone/{part}.jsonl"))) for part in ("train", "validation")]
    assert [len(rows) for rows in parts] == [30, 2]
    texts = {row["text"] for rows in parts for row in rows}
    assert texts == {f"Review {i} of it & more blanks" for i in range(30)} | {"bad thing", "good thing"}
    with pytest.raises(DataError, match=r"camera_photo\.task\.train, line 1 is no label, tab and review"):
        suite.locate("camera/train.jsonl")
    (cache_folder("six-domains") / FETCHED / "six_end_tasks_raw/Nokia6600.test.json").unlink()
    with pytest.raises(DataError, match=r"Nokia6600\.test\.json.*kept clear of it"):
        suite.locate("phone/train.jsonl")


def archive(files: dict[str, str]) -> bytes:
    """As GitHub packs a commit."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"repository-1234/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


def test_an_archive_is_whole_and_may_be_packed_anew(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = suite_of(Fetchable("raw/a.tar.gz", f"{address}/a.tar.gz", "MIT", packed=True))
    for broken in (b"<html>", archive({"a": "b" * 10_000})[:-30]):
        monkeypatch.setitem(FILES, "/a.tar.gz", broken)
        with pytest.raises(DataError, match=r"known as raw/a\.tar\.gz: it is no whole archive \("):
            fetch(own)
    monkeypatch.setitem(FILES, "/a.tar.gz", archive({"a": "b"}))
    folder = fetch(own)
    ASKED.clear()
    fetch(own)
    assert ASKED == []
    (folder / "raw/a.tar.gz").unlink()
    monkeypatch.setitem(FILES, "/a.tar.gz", gzip.compress(gzip.decompress(FILES["/a.tar.gz"]), 1, mtime=1))
    fetch(own)
    assert read_json(folder / RECORD)["raw/a.tar.gz"]["sha256"] == hashlib.sha256(FILES["/a.tar.gz"]).hexdigest()


SENTENCE = "The {0} of {1} is as good to us as the one of {1}, and that is it, {1} of them in all."
"""No 13 words in a row lack the number."""


@pytest.fixture
def six(address: str, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """The suite with every source on our own server, as small files in the layout of the repositories."""
    monkeypatch.delenv("EVERLEARN_SIX_DOMAINS", raising=False)
    monkeypatch.setattr(readers, "BOOKS", {readers.book(f"A/{i}.txt") for i in range(60)})

    def told(of: str, number: int = 60) -> list[str]:
        return [SENTENCE.format(of, i) for i in range(number)]

    papers = "".join(
        f"<paper><title>T{i}</title><abstract>{text * 4}</abstract></paper>" for i, text in enumerate(told("x"))
    )
    talks = [{"title": f"T{i}", "abstract": text * 4} for i, text in enumerate(told("talk"))]
    trial = "<article><front><article-title>T</article-title><abstract><p>{}</p></abstract></front></article>"
    wiki = "".join(f'<doc id="{i}">\nT{i}\n\n{text * 4}\n\n</doc>\n' for i, text in enumerate(told("town")))
    book = "Language: English\n*** START OF A ***\n{}\n*** END OF A ***\n"
    files: dict[str, bytes] = {
        "acl-anthology.tar.gz": archive({"data/xml_all/P99.xml": f"<collection>{papers}</collection>"}),
        "paperlists.tar.gz": archive({"nips/nips1999.json": json.dumps(talks)}),
        "evidence-inference.tar.gz": archive(
            {f"annotations/xml_files/{i}.nxml": trial.format(text) for i, text in enumerate(told("drug"))}
        ),
        "WikiTasks.tar.gz": archive({"text/AA/wiki_00": wiki}),
        "Gutenberg_Text.tar.gz": archive({f"A/{i}.txt": book.format(text) for i, text in enumerate(told("book"))}),
        "reviews.csv": "\n".join(f'"{text}"' for text in told("cell")).encode(),
    }
    task = json.dumps({"0": {"term": "t", "sentence": SENTENCE.format("cell", 7), "polarity": "positive"}}).encode()
    example = json.dumps({"text": "Nothing", "label": "a"}).encode()
    here = []
    for each in SUITES["six-domains"].sources:
        name = Path(each.path).name
        content = files.get(name, task if name.endswith(".json") else example)
        if name.endswith(".csv") and name != "reviews.csv":
            content = b"label,sentence\n" + "\n".join(f'1,"{text}"' for text in told(name)).encode()
        if name.startswith(("sentiment", "tokenized")):
            content = "\n".join(told(name)).encode()
        if each.path.startswith("reviews/"):
            content = b"1\tgood"
        monkeypatch.setitem(FILES, f"/{each.path}", content)
        here.append(replace(each, address=f"{address}/{each.path}", sha256=""))
    monkeypatch.setattr(SUITES["six-domains"], "sources", tuple(here))
    monkeypatch.setattr(
        proxy_corpora, "CORPORA", {k: replace(corpus, documents=60) for k, corpus in proxy_corpora.CORPORA.items()}
    )
    return SUITES["six-domains"]


def test_the_corpora_of_six_domains_are_made_of_what_is_fetched(six: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    folder = fetch(six, said.append)
    assert said[-6:] == [f"Making {name}" for name in proxy_corpora.CORPORA]
    counts = {
        name: read_json(folder / name / proxy_corpora.MADE)["documents"]["read"] for name in proxy_corpora.CORPORA
    }
    assert counts.pop("domains/yelp_restaurants") == 60 * 3 + 4 * 8 + 15
    assert set(counts.values()) == {60}
    made = read_json(folder / "domains/yelp_restaurants" / proxy_corpora.MADE)
    assert made["note"].startswith("made here from the same sources; not byte-identical")
    assert made["documents"]["shared with the end task"] == 3 + 4 + 1
    record = read_json(folder / RECORD)
    assert made["made of"] == {path: record[path]["sha256"] for path in made["made of"]}
    rows = [
        row
        for part in ("train", "validation", "test")
        for row in read_lines(folder / f"domains/ai_papers/{part}.jsonl.gz")
    ]
    assert sorted(row["text"] for row in rows)[0].startswith("T0\nThe talk of 0 is as good")
    assert list(read_lines(six.locate("general/train.jsonl")))
    assert six.locate("restaurant/train.jsonl") == (folder / "domains/yelp_restaurants/train.jsonl.gz").resolve()
    notes = keys_of(six, ("acl",), end_tasks=None)["run"]["notes"]
    assert notes[1:] == [f"Proxy corpus 'acl': {proxy_corpora.NOTE}.", f"General text: {proxy_corpora.NOTE}."]

    ASKED.clear()
    said.clear()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert fetch(six, said.append) == folder
    assert ASKED == said == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    monkeypatch.setattr(proxy_corpora, "MAKER", proxy_corpora.MAKER + 1)
    (folder / "D0/books" / proxy_corpora.MADE).unlink()  # from here on a user's own
    fetch(six, said.append)
    assert said == [f"Making {name}" for name in proxy_corpora.CORPORA if name != "D0/books"]


def test_what_cannot_be_made_is_said_and_the_rest_is_made(six: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FILES, "/raw/Yelp-Reviews/data/reviews.csv")
    monkeypatch.setitem(FILES, "/raw/WikiTasks.tar.gz", b"broken")
    monkeypatch.setitem(FILES, "/raw/paperlists.tar.gz", archive({"nips/nips2099.json": "[]"}))
    monkeypatch.setitem(FILES, "/raw/evidence-inference.tar.gz", gzip.compress(b"no archive"))
    said: list[str] = []
    with pytest.raises(
        DataError, match=r"reviews\.csv could not be fetched: Not Found\. \(2 of \d+ files are missing"
    ) as caught:
        fetch(six, said.append)
    assert str(caught.value).endswith(six.by_hand)
    folder = cache_folder("six-domains") / FETCHED
    assert [name for name in proxy_corpora.CORPORA if (folder / name).is_dir()] == ["domains/acl_papers", "D0/books"]
    assert any("WikiTasks.tar.gz: it is no whole archive" in line for line in said)
    assert (
        "domains/ai_papers could not be made: raw/paperlists.tar.gz hold 0 documents, not about 60: they are others"
        in " ".join(said)
    )
    assert any(line.startswith("domains/pubmed_rct could not be made: ") and "cannot be read" in line for line in said)
    assert not list(folder.rglob(".partial.*"))


def test_no_server_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"could not be fetched: .*refused"):
        fetch(suite_of(Fetchable("a", "http://127.0.0.1:9/a", "MIT")))
    with pytest.raises(DataError, match="`own` has nothing to fetch"):
        fetch(suite_of())


def test_a_server_out_of_reach_is_asked_once_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of files of a suite lie on one server."""
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    asked: list[tuple[str, float]] = []

    def nobody(address: tuple[str, int], timeout: float, *_: object) -> None:
        asked.append((address[0], timeout))
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.create_connection", nobody)
    told: list[str] = []
    sources = [Fetchable(f"{n}", f"{kind}://nowhere.invalid/{n}", "MIT") for n, kind in enumerate(["https"] * 3)]
    sources += [Fetchable("last", "http://other.invalid/last", "MIT")]
    with pytest.raises(DataError, match=r"/0 could not be fetched: timed out\. \(4 of 4 files are missing\.\)"):
        fetch(suite_of(*sources), told.append)
    assert asked == [("nowhere.invalid", fetching.CONNECT), ("other.invalid", fetching.CONNECT)]
    assert told[0] == "Fetching 0 from nowhere.invalid (1 of 4)"
    assert len(told) == 4


@pytest.mark.parametrize("name", sorted(SUITES))
def test_the_table_of_every_suite(name: str) -> None:
    sources = SUITES[name].sources
    assert len({each.path for each in sources}) == len({each.address for each in sources}) == len(sources)
    for each in sources:
        assert each.address.startswith("https://")
        assert each.licence
        assert not Path(each.path).is_absolute()
        assert ".." not in each.path
        assert len(each.sha256) in (0, 64)
    assert not sources or SUITES[name].by_hand


def test_tarballs_of_the_chosen_domains_are_fetched_and_read(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVERLEARN_M2D2", raising=False)
    suite, here = SUITES["m2d2"], []
    for each in suite.sources:
        name = each.path.removesuffix(".tar.gz")
        here.append(replace(each, address=f"{address}/{each.path}"))
        if not name.startswith("econ"):
            continue
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for part in ("train", "valid", "test"):
                content = f"{part} of {name}\n".encode()
                info = tarfile.TarInfo(f"{name}/{part}.txt")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        monkeypatch.setitem(FILES, f"/{each.path}", packed.getvalue())
    monkeypatch.setattr(suite, "sources", tuple(here))
    folder = fetch(suite, overlay=overlay_of({"suite": {"domains": ["econ.EM", "econ.TH"]}}))
    assert ASKED == ["/econ.EM.tar.gz", "/econ.TH.tar.gz"]
    assert sorted(path.name for path in folder.iterdir()) == ["econ.EM.tar.gz", "econ.TH.tar.gz", RECORD]
    assert [row["text"] for row in read_lines(suite.locate("econ.TH/test.jsonl"))] == ["test of econ.TH"]


def test_the_page_of_the_sources_is_what_the_tables_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "data_sources.py"))["page"]()
    assert (docs / "data-sources.md").read_text(encoding="utf-8") == made


NAME = "cs.CL.tar.gz"
MUCH = 2**24
"""Bytes; some kilobytes when they are packed."""


def described(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header of an archive that announces so many bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def sparse(parts: int) -> bytes:
    """A file with holes, whose list of parts goes on and on."""
    more = b"\1".rjust(483, b"\0")
    first = bytearray(described("a", 512, tarfile.GNUTYPE_SPARSE))
    first[482:483] = b"\1"
    first[148:156] = b"%06o\0 " % (256 + sum(first[:148]) + sum(first[156:]))
    return bytes(first) + (b"0" * 504 + b"\1" + bytes(7)) * (parts // 21) + more


BEGINNINGS: dict[str, bytes] = {
    "a long name": described("././@LongLink", MUCH, tarfile.GNUTYPE_LONGNAME) + b"a" * MUCH,
    "a long link": described("././@LongLink", MUCH, tarfile.GNUTYPE_LONGLINK) + b"a" * MUCH,
    "an extended header": described("x", MUCH, tarfile.XHDTYPE) + b"a" * MUCH,
    "an extended header for all": described("x", MUCH, tarfile.XGLTYPE) + b"a" * MUCH,
    "names of names": (described("././@LongLink", 512, tarfile.GNUTYPE_LONGNAME) + b"d" * 512) * 5000,
    "many parts": sparse(MUCH // 25),
}
"""Of archives that say more about a file than anybody reads."""


def peak_of(work: Callable[[], object]) -> int:
    """The bytes that Python took at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", BEGINNINGS)
def test_an_archive_that_describes_a_file_at_length_is_a_sentence(tmp_path: Path, what: str) -> None:
    with gzip.open(tmp_path / NAME, "wb", 1) as file:
        file.write(BEGINNINGS[what])
    assert (tmp_path / NAME).stat().st_size < MUCH / 50
    said = "cannot be read: the description of a file has more than 65,536 bytes"

    def read() -> None:
        with pytest.raises(DataError, match=f"{NAME}' {said}"):
            list(read_folder(tmp_path).leaves[0].texts["train"]())
        with pytest.raises(DataError, match=f"{NAME} {said}"):
            list(archives.members(tmp_path / NAME, lambda name: True))

    assert peak_of(read) < MUCH / 8


@pytest.mark.parametrize("headers", [{"GNU.sparse.map": "0,9,9", "size": "9" * 30}, {"GNU.sparse.map": "0,9"}], ids=str)
def test_a_sparse_file_is_refused_before_its_holes_are_read(tmp_path: Path, headers: dict[str, str]) -> None:
    """Its holes would be read as zeros, up to the longest line: 135 MB of ten bytes."""
    with tarfile.open(tmp_path / NAME, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("cs.CL/train.txt")
        info.size, info.pax_headers = 10, headers
        tar.addfile(info, io.BytesIO(b"ten bytes\n"))
    said = "cannot be read: 'cs.CL/train.txt' is stored with holes: pack it without `--sparse`"

    def read() -> None:
        with pytest.raises(DataError, match=f"{NAME}' {said}"):
            list(read_folder(tmp_path).leaves[0].texts["train"]())
        with pytest.raises(DataError, match=f"{NAME} {said}"):
            list(archives.members(tmp_path / NAME, lambda name: True))

    assert peak_of(read) < 2**20


def test_an_archive_of_any_number_of_files_takes_no_memory_for_each(tmp_path: Path) -> None:
    with gzip.open(tmp_path / NAME, "wb", 1) as file:
        file.write(described("a/b", 0) * 5_000 + bytes(1024))
    assert peak_of(lambda: list(archives.members(tmp_path / NAME, lambda name: False))) < 2**20


def test_a_file_of_less_than_nothing_is_a_sentence(tmp_path: Path) -> None:
    with gzip.open(tmp_path / NAME, "wb", 1) as file:
        file.write(described("a/b", -512) + bytes(1024))
    with pytest.raises(DataError, match=f"{NAME} cannot be read"):
        list(archives.members(tmp_path / NAME, lambda name: True))


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_that_nobody_wrote_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr(archives, "MOST_LINE", 1000)
    content = b"short\n\n" + b"x" * 999 + b"\n" + b"y" * 1001 + b"\nz\n"
    if packed:
        with tarfile.open(tmp_path / NAME, "w:gz") as tar:
            info = tarfile.TarInfo("cs.CL/train.txt")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    else:
        (tmp_path / "cs.CL").mkdir()
        for part in ("train", "valid", "test"):
            (tmp_path / f"cs.CL/{part}.txt").write_bytes(content)
    texts = read_folder(tmp_path).leaves[0].texts["train"]()
    assert [next(texts), next(texts)] == ["short", "x" * 999]
    with pytest.raises(DataError, match="line 4, is longer than 1,000 bytes: put each document on a line"):
        next(texts)
