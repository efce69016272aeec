"""Write the text of the far stream, which no English model knows well: Finnish, Prolog, Russian, Polish.

    python benchmarks/real-models/far_text.py FOLDER

It is taken from four packages of Debian 12 (documentation and code under free licences), whose digests are checked.
Each domain gets `FOLDER/far/DOMAIN/{train,validation}.jsonl.gz`. No validation document is much like the training text.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import html.parser
import io
import json
import re
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

POOL = "http://deb.debian.org/debian/pool/main/"
PIECE = 3000
"""Characters of a document: longer texts are cut at paragraphs."""
SHARE = 5
"""One document in so many is kept for validation."""
RUN = 13
"""Words in a row; a validation document is left out if 30 % of its runs or more are in the training text."""


@dataclass(frozen=True)
class Package:
    """A Debian package, its files that are read, and how.

    Attributes:
        path: in the pool of the archive.
        digest: SHA-256 of the package.
        files: pattern of the names of the files that are read.
        read: returns the text of a file.
    """

    path: str
    digest: str
    files: str
    read: Callable[[bytes], str]

    def texts(self) -> Iterator[str]:
        """Yield the text of each file, ordered by name."""
        with urllib.request.urlopen(POOL + self.path) as response:
            archive = response.read()
        if (digest := hashlib.sha256(archive).hexdigest()) != self.digest:
            raise SystemExit(f"{self.path} has the digest {digest} instead of {self.digest}.")
        with tarfile.open(fileobj=io.BytesIO(member(archive, "data.tar")), mode="r:*") as tar:
            names = sorted(each.name for each in tar if each.isfile() and re.fullmatch(self.files, each.name))
            for name in names:
                file = tar.extractfile(name)
                assert file is not None
                yield self.read(file.read())


def member(archive: bytes, name: str) -> bytes:
    """Return the first member of an `ar` archive whose name begins with `name`."""
    place = len(b"!<arch>\n")
    while place < len(archive):
        header = archive[place : place + 60]
        size = int(header[48:58])
        if header[:16].decode().startswith(name):
            return archive[place + 60 : place + 60 + size]
        place += 60 + size + size % 2
    raise SystemExit(f"The package has no {name}.")


class _Text(html.parser.HTMLParser):
    """Collect the text of a page; blocks become paragraphs."""

    BLOCKS = frozenset(["p", "li", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "pre", "div", "tr"])

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("script", "style", "head")
        if tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "head")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def of_html(content: bytes) -> str:
    """Return the text of a page."""
    parser = _Text()
    parser.feed(content.decode())
    return re.sub(r"\s*\n\s*\n\s*", "\n\n", "".join(parser.parts)).strip()


def plain(content: bytes) -> str:
    """Return plain text."""
    return content.decode(errors="ignore").strip()


def unzipped(content: bytes) -> str:
    """Return compressed plain text."""
    return plain(gzip.decompress(content))


def manual_page(content: bytes) -> str:
    """Return a manual page with its markup, without comments."""
    lines = (line for line in unzipped(content).splitlines() if not line.startswith(('.\\"', "'\\\"")))
    return "\n".join(lines).strip()


PACKAGES = {
    "finnish": Package(
        "a/aptitude/aptitude-doc-fi_0.8.13-5_all.deb",
        "4821df5efb9ebbf0da6d5b12736fb9acd6694f58b9545b27f82f37c6d1bf8850",
        r"\./usr/share/doc/aptitude/html/fi/.*\.html",
        of_html,
    ),
    "prolog": Package(
        "s/swi-prolog/swi-prolog-core-packages_9.0.4+dfsg-2_amd64.deb",
        "1e0aa2fc58d9b348df2dcbf1ba77e8e7f7a77d976abc21106d60c7a07fa82c98",
        r"\./usr/lib/swi-prolog/library/(?!chr/chr_translate|chr/guard_entailment).*\.pl",
        plain,
    ),
    "russian": Package(
        "d/developers-reference/developers-reference-ru_12.18_all.deb",
        "a618bfa826e2436fa73d5bf4eaac7170ff9d25a5d1bdd86b1c25a196a2b886c6",
        r"\./usr/share/developers-reference/ru/developers-reference\.txt\.gz",
        unzipped,
    ),
    "polish": Package(
        "m/manpages-l10n/manpages-pl_4.18.1-1_all.deb",
        "31e518ea8331b5204d4fd0032037f96af1ba94a5afa4f0585dca1996b270cdf9",
        r"\./usr/share/man/pl/man[1-8]/.*\.gz",
        manual_page,
    ),
}


def pieces(text: str) -> Iterator[str]:
    """Cut a text at paragraphs into documents of about PIECE characters."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if piece and len(piece) + len(paragraph) > PIECE:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
    if piece:
        yield piece


def runs(text: str) -> set[tuple[str, ...]]:
    """Return each RUN words in a row."""
    words = text.split()
    return {tuple(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1))}


def write(path: Path, texts: list[str]) -> None:
    """Write one JSON object a line, compressed, without a time stamp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    print(f"{path}: {len(texts):,} documents, {sum(map(len, texts)):,} characters")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder / "far"
    for domain, package in PACKAGES.items():
        documents = [piece for text in package.texts() for piece in pieces(text) if len(piece) >= 200]
        documents = sorted(set(documents), key=lambda text: hashlib.sha256(text.encode()).digest())
        kept = len(documents) // SHARE
        train = documents[kept:]
        known = set[tuple[str, ...]]().union(*map(runs, train))
        validation = [text for text in documents[:kept] if len(runs(text) & known) < 0.3 * len(runs(text))]
        write(folder / domain / "train.jsonl.gz", train)
        write(folder / domain / "validation.jsonl.gz", validation)


if __name__ == "__main__":
    main()
