"""Fetching a suite's data, from a server of our own: whole files or a sentence."""

from __future__ import annotations

import hashlib
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from everlearn.errors import DataError
from everlearn.files import read_json
from everlearn.suites import SUITES, Suite
from everlearn.suites.derived import data_folder
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
    assert said == ["Fetching in/one.json (1 of 2)", "Fetching in/two.json (2 of 2)"]
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


def test_no_server_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERLEARN_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"could not be fetched: .*refused"):
        fetch(suite_of(Fetchable("a", "http://127.0.0.1:9/a", "MIT")))
    with pytest.raises(DataError, match="`own` has nothing to fetch"):
        fetch(suite_of())


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


def test_the_page_of_the_sources_is_what_the_tables_say() -> None:
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "data_sources.py"))["page"]()
    assert (docs / "data-sources.md").read_text(encoding="utf-8") == made
