"""Fetching a suite's data, from a server of our own: whole files or a sentence."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import runpy
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from everlearn.errors import DataError
from everlearn.files import read_json
from everlearn.suites import SUITES, Settings, StreamSettings, Suite, fetching
from everlearn.suites.code.suite import TASKS
from everlearn.suites.derived import FETCHED, cache_folder, data_folder, read_lines
from everlearn.suites.fetching import RECORD, fetch
from everlearn.suites.sources import Fetchable

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
    assert data_folder("own", "EVERLEARN_NOTHING", None, "how") == folder.resolve()
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
    assert "what was fetched lies in " in str(caught.value)
    assert str(caught.value).endswith("Or clone it.")
    place = Path(str(caught.value).split("lies in ")[1].split(". Or")[0])
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
    for task in TASKS:
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
    folder = fetch(suite, settings=Settings(stream=StreamSettings(domains=("econ.EM", "econ.TH"))))
    assert ASKED == ["/econ.EM.tar.gz", "/econ.TH.tar.gz"]
    assert sorted(path.name for path in folder.iterdir()) == ["econ.EM.tar.gz", "econ.TH.tar.gz", RECORD]
    assert [row["text"] for row in read_lines(suite.locate("econ.TH/test.jsonl"))] == ["test of econ.TH"]


def test_the_page_of_the_sources_is_what_the_tables_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "data_sources.py"))["page"]()
    assert (docs / "data-sources.md").read_text(encoding="utf-8") == made
