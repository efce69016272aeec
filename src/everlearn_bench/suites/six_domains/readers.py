"""Readers of published documents: a function for each kind of file.

Documents that cannot be read are left out; counts of documents reveal that they are missing.
"""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from everlearn.errors import DataError
from everlearn_bench.suites.archives import members
from everlearn_bench.suites.six_domains.cache import read_text
from everlearn_bench.suites.six_domains.cleaning import Document, key

ABSTRACT = 250
"""Characters from which an abstract is one."""
ARTICLE = 200
"""Characters from which an article of the encyclopedia is more than a title."""
BODY = 1_700
"""Characters of an article's body at most: paragraphs from its beginning that fit whole."""
RECORD = 8_000
"""Characters of a part of a book at most, unless a paragraph is longer."""
ENGLISH = frozenset(
    ("the", "of", "and", "to", "in", "a", "is", "we", "for", "that", "on", "with", "this", "are", "as", "by")
)
YEARS: dict[str, tuple[int, ...]] = {
    "aaai": (2022,),
    "acml": (*range(2010, 2025),),
    "aistats": (1995, 1997, 1999, 2001, 2003, 2007, *range(2009, 2026)),
    "alt": (2025,),
    "automl": (2022, 2023, 2024),
    "colt": (*range(2011, 2025),),
    "iclr": (2013, 2014, 2017, 2018),
    "icml": (*range(2013, 2020),),
    "ijcai": (*range(2020, 2025),),
    "nips": (*range(1987, 2019),),
    "uai": (*range(2019, 2025),),
}
"""The conferences that the proxy of the committed results has abstracts of."""
_LEFT = re.compile(r" ?(?:[\[(][\s,;–-]*[\])]|\((?:see )?(?:fig|table)[^()]*\))", re.IGNORECASE)
"""What is left of citations without their numbers, and of pointers to figures and tables without these."""

_BOOKS = (
    "0090683e00eb735401aa535a0236f21802bfc38d04667e00056680eb058158eb05dd4e8105e89bc90745368008c5a6bf0aa861e80deef483"
    "103f960e10a4a69a14624d6515c3b6b31748d0d1178b426b18de1c7119c7fc2f1a216e051a2627f41ad3de4f1b5e7b661ccb12d01daf8bc0"
    "1e02ab9d1e57cf921fbf366d209ec2db20ab34d424c790d925a104e2262b84e9262ee2692a47b7922b57cfc52c2fe4952c9f9fdb2d6a2223"
    "2d8de2b72dce902f2e367a9d2e6b71eb2f525533308f4abd348c543634fce47e3641055c365a979c366fc54b38b7d5af39cec4573cb0fd1a"
    "3cbfa8a13ceae6873d11e0703ef292ec3ef3334e41a97e7d4474274a457a306945a82c09471d29e747938a8647f7bf2c491ceab64a8b7b9a"
    "4affd25f4b02295a4b67271b4bb26a404c85a04c4cb76d7a4e2bc69b519db6695490b64c56a335e65aac58455ad9c7815cc1b5fa5eac6e86"
    "5eb1f5255fb7d6be60c501c362ed0f8c650b814e67b65af36bba25d56c3c65e36cc7f2346cfeb0986d5248f46e62bf976f7363c3716b81b1"
    "7238a98d72b9c7c97354c0c2769ca25d76fe12dc770aa77077442c5f793c12e87ba871b37c8ac8737d1fbad97e15b0847efe6476806403ea"
    "8156a4d28258f2cd8299339b844539a087ee20da88d00aad88d3c8198a7eeecc8adc64978cf15fa79095640191c86a7f91dc5251936585eb"
    "96fec7f7977792c498d71a159919499e9b7607339feae024a008790ba18cdf23a463b5dea5002b61a66a5bd9a68335dea7013d6ca944afb2"
    "acb8e5f4b137df64b171c776b30a4841b3ec3b81b465536fb4a3461db4bd5bb7b6d6aae4b7799b6ab9f4950abba4a721bbb8250fbebd90dd"
    "beceae67c065e0d9c12b0163c139e914c3b19db4c550b879c6ad38dfc7a43372c8160303c91cc744c944b555cb274374cb3c1661cc5c74ff"
    "cd80be72ce647a21ce81d1e9cf451a84d010a58bd0668a92d0a81d5ad43317e4d69956ddd9323ce9daa1b416dad7dc4edc4399e1e0712d54"
    "e0fefbffe190c603e27d298ae2810941e3b0c6cae3fed436e522bb2ae62bf8a9e6f575c9e7a0c7b9e88445b0e8847677e8ad86dcea31a094"
    "eb224f3aebf118d2ed184ba1eef953a6ef4b8c77ef6dafc0f00f67e7f2545b7bf4b4dc4bfad9d47bfbbb8b4ffc27d9cdfc2e71bffcf06225"
    "fd01c5bbff79ea4d"
)
BOOKS = frozenset(_BOOKS[i : i + 8] for i in range(0, len(_BOOKS), 8))
"""The books that the proxy of the committed results is made of, by :func:`book`."""


def cells(path: Path) -> Iterator[Document]:
    """Yield a review for every cell of a table without a header."""
    yield from ((cell,) for row in _rows(path) for cell in row)


def sentences(path: Path) -> Iterator[Document]:
    """Yield the reviews in the column ``sentence``."""
    rows = _rows(path)
    place = next(rows, []).index
    try:
        column = place("sentence")
    except ValueError:
        raise DataError(f"{path} has no column `sentence`.") from None
    yield from ((row[column],) for row in rows if len(row) > column)


def lines(number: int, path: Path) -> Iterator[Document]:
    """Yield documents of `number` consecutive lines."""
    nonblank = [line for line in read_text(path).split("\n") if line.strip()]
    yield from (("\n".join(nonblank[i : i + number]),) for i in range(0, len(nonblank), number))


def anthology(path: Path) -> Iterator[Document]:
    """Yield title and abstract of the English papers of the ACL Anthology; its XML has other languages too."""
    for _, content in members(path, lambda name: PurePosixPath(name).match("data/xml_all/*.xml")):
        for paper in _xml(content).iter("paper"):
            title, abstract = (_plain(paper.find(name)) for name in ("title", "abstract"))
            english = paper.findtext("language", "eng") == "eng" and _is_english(abstract)
            if title and english and len(abstract) >= ABSTRACT:
                yield (f"{title}\n{abstract}",)


def conferences(path: Path) -> Iterator[Document]:
    """Yield title and abstract of the papers of the conferences in :data:`YEARS`."""
    names = {f"{venue}/{venue}{year}.json" for venue, years in YEARS.items() for year in years}
    for _, content in members(path, names.__contains__):
        for paper in _objects(content):
            title, abstract = (str(paper.get(name) or "").strip() for name in ("title", "abstract"))
            if title and len(abstract) >= ABSTRACT:
                yield (f"{title}\n{abstract}",)


def trials(path: Path) -> Iterator[Document]:
    """Yield title, abstract with its headings, and the first paragraphs of the articles on trials."""
    for _, content in members(path, lambda name: PurePosixPath(name).match("annotations/xml_files/*.nxml")):
        article = _xml(content)
        title, abstract = _plain(article.find(".//article-title")), article.find(".//abstract")
        if not title or abstract is None:
            continue
        text = [title, *_headed(abstract)]
        left = BODY
        for paragraph in _paragraphs(article.find(".//body")):
            left -= len(paragraph)
            if left < 0:
                break
            text.append(paragraph)
        yield ("\n".join(text),)


def encyclopedia(path: Path) -> Iterator[Document]:
    """Yield articles as written by WikiExtractor: the title, an empty line, the text."""
    for _, content in members(path, lambda name: PurePosixPath(name).match("text/AA/wiki_*")):
        for text in re.findall(r"<doc [^\n]*>\n(.*?)\n</doc>", content.decode("utf-8", "replace"), re.DOTALL):
            if len(text.strip()) >= ARTICLE:
                yield (text.replace(" ()", ""),)  # the remains of a pronunciation


def books(path: Path) -> Iterator[Document]:
    """Yield the selected books of Project Gutenberg in records, without the notes about the file."""
    for _, content in members(path, lambda name: book(name) in BOOKS):
        text = content.decode("utf-8", "replace").replace("\r\n", "\n")
        parts = re.split(r"^\*\*\* ?(?:START|END) OF .*$", text, maxsplit=2, flags=re.MULTILINE)
        if len(parts) == 3:
            yield _records([_reflowed(each) for each in re.split(r"\n\s*\n", parts[1]) if each.strip()])


def book(name: str) -> str:
    """Return a short hash that identifies a book by its file name, author and title.

    Only letters and digits count, since copies differ in blanks and endings.
    """
    return key(name.removesuffix(".txt"))[:8]


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        yield from csv.reader(io.StringIO(read_text(path), newline=""))
    except csv.Error as error:
        raise DataError(f"{path} is no table of comma-separated values: {error}.") from None


def _objects(content: bytes) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(content)
    except ValueError:
        return []
    return [row for row in parsed if isinstance(row, dict)] if isinstance(parsed, list) else []


def _xml(content: bytes) -> ET.Element:
    try:
        return ET.fromstring(content)
    except ET.ParseError:
        return ET.Element("nothing")


def _plain(element: ET.Element | None) -> str:
    """Return the text of an element on one line, without citations, figures and tables, and references to them."""
    if element is None:
        return ""
    return _LEFT.sub("", " ".join("".join(_texts(element)).split()))


def _texts(element: ET.Element) -> Iterator[str]:
    if element.tag in ("fig", "table-wrap", "disp-formula") or element.get("ref-type") == "bibr":
        return
    yield element.text or ""
    for part in element:
        yield from _texts(part)
        yield part.tail or ""


def _headed(abstract: ET.Element) -> Iterator[str]:
    """Yield a line for each section, after its heading."""
    for section in abstract.findall("sec") or [abstract]:
        text = " ".join(filter(None, map(_plain, section.iter("p"))))
        heading = _plain(section.find("title")).rstrip(":.") if section.tag == "sec" else ""
        if text:
            yield f"{heading}: {text}" if heading else text


def _paragraphs(element: ET.Element | None) -> Iterator[str]:
    for part in [] if element is None else element:
        if part.tag == "p":
            yield from filter(None, [_plain(part)])
        elif part.tag == "sec":
            yield from _paragraphs(part)


def _is_english(text: str) -> bool:
    """Return whether a tenth of the words are frequent ones, as in every abstract of the committed proxy."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    return sum(word in ENGLISH for word in words) >= 0.1 * len(words)


def _reflowed(paragraph: str) -> str:
    """Join prose to one line; keep lines that are short or indented, as in verses and lists."""
    stripped = [line.rstrip() for line in paragraph.strip("\n").split("\n")]
    prose = all(len(line) >= 50 for line in stripped[:-1]) and not any(line.startswith(" ") for line in stripped)
    return (" " if prose else "\n").join(line.strip().replace("_", "") for line in stripped)


def _records(paragraphs: list[str]) -> Document:
    records: list[str] = []
    if paragraphs and paragraphs[0].startswith("Produced by"):  # transcriber's credits
        del paragraphs[0]
    for paragraph in paragraphs:
        if records and len(records[-1]) + len(paragraph) + 2 <= RECORD:
            records[-1] += f"\n\n{paragraph}"
        else:
            records.append(paragraph)
    return records
