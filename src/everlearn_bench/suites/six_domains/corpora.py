"""The corpora of the six domains: the closest public text if that of the paper is not available, called a proxy.

The paper (DAS, arXiv 2302.03241) trains on 300 to 1,000 MB of text per domain; the proxies have 1 to 14 MB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlearn_bench.suites.six_domains import cleaning, reviews
from everlearn_bench.suites.six_domains.cache import VARIABLE, derived, find, read_lines, write_lines

GENERAL = "general"
PARTS = ("train", "validation")
GENERAL_SOURCES = ("wikipedia", "books")
GENERAL_CHARACTERS = 4_000_000
"""Of each source of general text: what importance, replay and drift need; a base model is pre-trained on all of it."""


@dataclass(frozen=True)
class Proxy:
    """Text in place of a corpus of the paper.

    Attributes:
        corpus: folder below ``domains/``.
        text: a description of the text.
        original: the corpus of the paper.
        category: only documents of this ``category``.
    """

    corpus: str
    text: str
    original: str
    category: str | None = None

    @property
    def sentence(self) -> str:
        """The description for tables and reports."""
        return f"{self.text} stand for {self.original}"


PROXIES = {
    "restaurant": Proxy("yelp_restaurants", "Yelp reviews (13.5 MB)", "758 MB of Yelp restaurant reviews"),
    "acl": Proxy("acl_papers", "abstracts of the ACL Anthology (13.5 MB)", "867 MB of its papers"),
    "ai": Proxy("ai_papers", "abstracts of AI conferences (13.5 MB)", "507 MB of AI papers"),
    "phone": Proxy(
        "amazon_electronics", "Amazon reviews of electronics (1.4 MB)", "724 MB of phone reviews", "electronics"
    ),
    "pubmed": Proxy("pubmed_rct", "PubMed Central articles on trials (12 MB)", "989 MB of PubMed abstracts"),
    "camera": Proxy(
        "amazon_electronics", "Amazon reviews of cameras (1.2 MB)", "319 MB of camera reviews", "camera_photo"
    ),
}
"""Phone and camera share a source and no document: of its classes of products, ``camera_photo`` is the paper's own
domain and ``electronics`` the nearest to phones; the third, ``software``, is left out."""


def proxy_file(domain: str, part: str, data: Path) -> Path:
    """Return the proxy corpus of a domain; for phone and camera one built from the published reviews by default.

    Args:
        domain: a key of :data:`PROXIES`.
        part: ``train`` or ``validation``.
        data: the data folder.

    Raises:
        DataError: the file that it is built from is missing; the message names it.
    """
    proxy = PROXIES[domain]
    raw = reviews.published(proxy.category, data) if proxy.category else []
    if raw and not list((data / "domains" / proxy.corpus).glob("*.jsonl*")):
        tasks = reviews.examples(domain, data)
        sources = [*raw, *tasks, Path(cleaning.__file__)]
        derived_folder = derived(domain, sources, reviews.__file__, lambda folder: reviews.write(folder, raw, tasks))
        return derived_folder / f"{part}.jsonl"
    instead = f"Put it there, or use text of your own: `domains.{domain}.path` in a recipe, `corpora` in Python."
    sources = [find(data, f"domains/{proxy.corpus}/{p}.jsonl", f"the domain '{domain}'", instead) for p in PARTS]
    if proxy.category is None:
        return sources[PARTS.index(part)]

    def write(folder: Path) -> None:
        for name, source in zip(PARTS, sources, strict=True):
            rows = (row for row in read_lines(source) if row.get("category") == proxy.category)
            write_lines(folder / f"{name}.jsonl", rows)

    return derived(domain, sources, __file__, write) / f"{part}.jsonl"


def general_file(part: str, data: Path) -> Path:
    """Return general text (D0): Wikipedia and books in equal parts, for drift and for methods that need some of it.

    ``train`` holds the documents that come first by their hashes, up to 4 million characters of each source;
    ``validation`` all held-out ones.

    Args:
        part: ``train`` or ``validation``.
        data: the data folder.

    Raises:
        DataError: a file that it is built from is missing; the message names it.
    """
    instead = (
        f"Put it there, use text of your own (`general.path` in a recipe, `corpora` in Python), or set {VARIABLE}."
    )
    names = [(source, p) for p in PARTS for source in GENERAL_SOURCES]
    sources = [find(data, f"D0/{source}/{p}.jsonl", "the general text", instead) for source, p in names]

    def write(folder: Path) -> None:
        for p in PARTS:
            texts = [_first(read_lines(path)) for path, (_, of) in zip(sources, names, strict=True) if of == p]
            write_lines(folder / f"{p}.jsonl", ({"text": text} for listed in texts for text in listed))

    return derived(GENERAL, sources, __file__, write) / f"{part}.jsonl"


def _first(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the texts that come first by their hashes and fit into :data:`GENERAL_CHARACTERS`."""
    texts = sorted(
        (str(row["text"]) for row in rows), key=lambda t: hashlib.blake2b(t.encode(), digest_size=8).digest()
    )
    kept, size = [], 0
    for text in texts:
        size += len(text)
        if size > GENERAL_CHARACTERS:
            break
        kept.append(text)
    return kept
