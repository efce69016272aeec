"""Build corpora from data that ``--data fetch`` downloaded.

They have the same sources and cleaning as the proxies of the committed results, but not the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlearn.errors import DataError, RunError
from everlearn.files import new_folder, read_json, write_json
from everlearn_bench.suites.six_domains import readers, reviews
from everlearn_bench.suites.six_domains.cleaning import Document, runs_of, write
from everlearn_bench.suites.sources import Fetchable, github, github_archive

FOLDER = "raw"
"""In the data folder: what is fetched for these corpora."""
MADE = "made.json"
"""In a corpus' folder: what it was made of, by whom, and what became of the documents."""
NOTE = "made here from the same sources; not byte-identical to the proxy of the committed results"
MAKER = 1
"""Version of the code that extracts documents; a corpus of another version is rebuilt."""
MOST = 15_000_000


@dataclass(frozen=True)
class Upstream:
    """A file of a repository, or all of them.

    Attributes:
        repository: owner and name.
        commit: full commit hash.
        path: path of the file; empty for an archive of all.
        licence: licence that the repository states.
        read: yields its documents.
    """

    repository: str
    commit: str
    path: str
    licence: str
    read: Callable[[Path], Iterator[Document]]

    @property
    def fetchable(self) -> Fetchable:
        """The download address, and the path to save it."""
        place = f"{FOLDER}/{self.repository.rpartition('/')[2]}"
        if not self.path:
            address = github_archive(self.repository, self.commit)
            return Fetchable(f"{place}.tar.gz", address, self.licence, packed=True)
        return Fetchable(f"{place}/{self.path}", github(self.repository, self.commit, self.path), self.licence)


@dataclass(frozen=True)
class ProxyCorpus:
    """How a corpus is built.

    Attributes:
        sources: the sources of its documents.
        documents: number of documents read for the committed proxy; half as many are too few.
        domain: the domain whose end task must not overlap with it; None for general text.
        most: bytes of text.
        held_out: one in `held_out` documents is held out for each of validation and test.
    """

    sources: tuple[Upstream, ...]
    documents: int
    domain: str | None = None
    most: int | None = MOST
    held_out: int = 20


_TRANSFER = ("shentianxiao/language-style-transfer", "f078a9d342705ea62b04dd3ac5926d3467c2ac63")
_SPLIT = ("vinhphuphan/Yelp-data-preprocessing", "4f2cab1c72937fcb8940f2a8c7b9e6a8be13685b")
_SENTENCES, _SHORT = functools.partial(readers.lines, 8), functools.partial(readers.lines, 4)
_NOTHING_SAID = "nothing said about the text"
CORPORA = {
    "domains/yelp_restaurants": ProxyCorpus(
        (
            Upstream(
                "tommycqy/Yelp-Reviews",
                "694d95f610a183e03f68fa9b2dcad69b760f5674",
                "data/reviews.csv",
                f"repository MIT; {_NOTHING_SAID}",
                readers.cells,
            ),
            *(Upstream(*_SPLIT, f"yelp_{part}.csv", "none stated", readers.sentences) for part in ("test", "val")),
            *(
                Upstream(
                    *_TRANSFER, f"data/yelp/sentiment.{part}", f"repository Apache-2.0; {_NOTHING_SAID}", _SENTENCES
                )
                for part in ("dev.0", "dev.1", "test.0", "test.1")
            ),
            Upstream(
                "syyang07/CS269-NLG-project",
                "6a5a7534532b08572ca4651718decd1d55ec8c15",
                "NMT/fake-reviews/fake-reviews/tokenized_real_reviews_40k.txt",
                "none stated",
                _SHORT,
            ),
        ),
        39_118,
        "restaurant",
    ),
    "domains/acl_papers": ProxyCorpus(
        (
            Upstream(
                "BKHMSI/acl-anthology",
                "5fda6f8c94c72633c4f5a89059c9d8be3ca45252",
                "",
                "repository Apache-2.0, for the code; nothing said about the abstracts",
                readers.anthology,
            ),
        ),
        30_436,
        "acl",
    ),
    "domains/ai_papers": ProxyCorpus(
        (
            Upstream(
                "papercopilot/paperlists",
                "33f9884e652f05a768d2f216534d7f1e446a0cf7",
                "",
                "none stated",
                readers.conferences,
            ),
        ),
        26_586,
        "ai",
    ),
    "domains/pubmed_rct": ProxyCorpus(
        (
            Upstream(
                "jayded/evidence-inference",
                "b9831b6c59b52ac2d277f757d413ececf0949a8d",
                "",
                "repository MIT; each article its own (some NC or ND)",
                readers.trials,
            ),
        ),
        4_341,
        "pubmed",
    ),
    "D0/wikipedia": ProxyCorpus(
        (
            Upstream(
                "Vibhas-hs-edu/WikiTasks",
                "52b1f163137bc40b0f67cbf129d5dab4f6fd5901",
                "",
                "repository MIT; the text CC BY-SA 3.0 at its source",
                readers.encyclopedia,
            ),
        ),
        27_372,
        most=None,
        held_out=64,
    ),
    "D0/books": ProxyCorpus(
        (
            Upstream(
                "rcdm-uga/Gutenberg_Text",
                "a0b16d35a9851168ce9ac649851c17b7ab08d48e",
                "",
                "that of Project Gutenberg, in every text",
                readers.books,
            ),
        ),
        213,
        most=None,
        held_out=64,
    ),
}
"""By their folders in the data."""
SOURCES = tuple(source.fetchable for corpus in CORPORA.values() for source in corpus.sources)


def make(folder: Path, known: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]) -> list[str]:
    """Build the corpora whose sources exist and that are missing; files of the user are not changed.

    Args:
        folder: the fetched files.
        known: path in it → recorded address, digest and size.
        say: called with progress messages.

    Returns:
        A sentence for each that could not be built.
    """
    failures = []
    for name, corpus in CORPORA.items():
        paths = [source.fetchable.path for source in corpus.sources]
        marks = {path: str(known.get(path, {}).get("sha256", "")) for path in paths}
        if not all((folder / path).is_file() for path in paths) or _is_there(folder / name, marks):
            continue
        say(f"Making {name}")
        try:
            _make(folder, name, corpus, marks)
        except DataError as error:
            failures.append(f"{name} could not be made: {error}")
            say(failures[-1])
    return failures


def made_here(folder: Path) -> bool:
    """Return whether the folder of a corpus was built by :func:`make`."""
    return (folder / MADE).is_file()


def _is_there(place: Path, marks: Mapping[str, str]) -> bool:
    if not made_here(place):
        return any(place.glob("*.jsonl*"))
    try:
        record = read_json(place / MADE)
        return (record["maker"], record["made of"]) == (MAKER, marks)
    except (RunError, KeyError, TypeError):
        return False


def _make(folder: Path, name: str, corpus: ProxyCorpus, marks: Mapping[str, str]) -> None:
    tasks = [] if corpus.domain is None else reviews.examples(corpus.domain, folder)
    documents = (document for source in corpus.sources for document in source.read(folder / source.fetchable.path))
    with new_folder(folder / name) as new:
        counts = write(new, documents, runs_of(tasks), corpus.most, corpus.held_out)
        if counts["read"] < corpus.documents / 2:
            raise DataError(
                f"{' and '.join(marks)} hold {counts['read']:,} documents, not about {corpus.documents:,}: they are "
                "others than the ones that are known."
            )
        known = {"documents read for the proxy of the committed results": corpus.documents}
        write_json(new / MADE, {"note": NOTE, "maker": MAKER, "made of": dict(marks), "documents": counts, **known})
