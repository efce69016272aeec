"""The built-in substitute for M2D2: public text in a data folder, and text of installed libraries.

Five super-domains of clearly different style stand for M2D2's two (Wikipedia and papers). Documentation and code of
installed libraries need no data folder; the rest is the text that `six-domains` is built from (docs/m2d2.md).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everlearn.data.blocks import hash_of
from everlearn.errors import DataError
from everlearn.files import digest
from everlearn_bench.suites import docs
from everlearn_bench.suites.cache import read_lines
from everlearn_bench.suites.code import corpus as code
from everlearn_bench.suites.docs.corpus import fingerprint
from everlearn_bench.suites.docs.reading import version
from everlearn_bench.suites.m2d2.corpus_folders import PARTS, Leaf, Taxonomy, Texts, mark_of
from everlearn_bench.suites.m2d2.domain_names import Branch
from everlearn_bench.suites.six_domains.corpora import GENERAL_SOURCES, general_file

MOST_BYTES = 2_000_000
"""Of a domain's training text: enough for some hundred small steps, and about what the smallest domains have."""
FILES = {"train": "train", "valid": "validation", "test": "test"}
"""M2D2's names of the parts → those of the data folder."""
DOCUMENTATION, CODE = "documentation", "code"
_DOCSTRING = re.compile(r"""\n\s*[rRuU]?("{3}|'{3}).*?\1""", re.DOTALL)


@dataclass(frozen=True)
class Kept:
    """The text of a built-in domain: all rows of a corpus in the data folder, or those with certain values in a column.

    Attributes:
        group: the domain's group in the taxonomy.
        corpus: the corpus, a folder below ``domains/``.
        column: column by which rows are selected; empty for all rows.
        values: allowed values of the column. Digits at the end of a row's value are ignored: "nips2018" counts as
            "nips".
    """

    group: str
    corpus: str
    column: str = ""
    values: tuple[str, ...] = ()

    def rows(self, file: Path) -> Iterator[str]:
        """Yield the texts of the selected rows."""
        for row in read_lines(file):
            if not self.column or str(row.get(self.column, "")).rstrip("0123456789") in self.values:
                yield str(row["text"])


def _products(corpus: str, group: str, *categories: str) -> dict[str, Kept]:
    return {f"amazon_{name}": Kept(group, corpus, "category", (name,)) for name in categories}


KEPT: dict[str, dict[str, Kept]] = {
    "reviews": {
        **_products("amazon_media", "media", "books", "dvd", "music", "video", "magazines"),
        "movies": Kept("media", "movie_reviews"),
        **_products("amazon_electronics", "electronics", "electronics", "camera_photo", "software"),
        **_products("amazon_home", "home", "apparel", "baby", "health_personal_care", "kitchen_housewares",
                    "sports_outdoors", "toys_games"),
        "yelp": Kept("places", "yelp_restaurants"),
    },
    "papers": {
        "computational_linguistics": Kept("language", "acl_papers"),
        "machine_learning": Kept("learning", "ai_papers", "venue", ("nips", "icml", "iclr", "acml", "automl")),
        "artificial_intelligence": Kept("learning", "ai_papers", "venue", ("aaai", "ijcai")),
        "statistical_learning": Kept("learning", "ai_papers", "venue", ("aistats", "uai", "colt", "alt")),
        "computer_vision": Kept("vision", "vision_robotics_papers", "venue", ("cvpr", "iccv", "eccv", "wacv", "3dv")),
        "robotics": Kept("vision", "vision_robotics_papers", "venue", ("rss", "corl")),
        "clinical_trials": Kept("medicine", "pubmed_rct"),
    },
    "prose": {
        "news_bbc_2004": Kept("news", "news", "source", ("bbc",)),
        "news_bbc_2010": Kept("news", "news", "source", ("xsum",)),
        "news_cnn": Kept("news", "news", "source", ("cnndm",)),
        "wikihow": Kept("advice", "wikihow"),
        "shakespeare": Kept("drama", "shakespeare"),
    },
}  # fmt: skip
"""Super-domain → domain → where it lies."""
LIBRARIES: dict[str, dict[str, tuple[str, ...]]] = {
    DOCUMENTATION: {"mathematics": ("sympy", "networkx", "scipy"), "data": ("pandas", "matplotlib", "torch")},
    CODE: {"mathematics": ("sympy", "networkx", "scipy"), "data": ("pandas", "matplotlib"), "language": ("python",)},
}
"""Super-domain → group → libraries; a domain is called ``docs_<library>`` or ``code_<library>``."""


def branches() -> dict[str, Branch]:
    """Return the place of every built-in domain in the taxonomy, in the order of the tables above."""
    kept = {name: Branch(top, kept.group, 2) for top, domains in KEPT.items() for name, kept in domains.items()}
    return kept | {name: Branch(top, group, 2) for name, top, group, _ in _installed()}


def names() -> tuple[str, ...]:
    """Return the names of all built-in domains, in the order of the tables above."""
    return tuple(branches())


def taxonomy(folder: Path | None) -> Taxonomy:
    """Return the built-in domains; without a folder those of installed libraries only.

    Args:
        folder: contains ``domains/<corpus>/{train,validation,test}.jsonl.gz`` (or uncompressed files); a missing corpus
            is left out.
    """
    leaves: list[Leaf] = []
    absent: set[str] = set()
    places = branches()
    for domains in KEPT.values():
        for name, kept in domains.items():
            files = None if folder is None else _files(folder / "domains" / kept.corpus)
            if files is None:
                absent.add(kept.corpus)
                continue
            texts = {part: _reader(kept, file) for part, file in files.items()}
            mark = hash_of(repr(kept), *(mark_of(file) for file in files.values()))
            leaves.append(Leaf(name, places[name], texts, mark))
    leaves += [_library(*each) for each in _installed()]
    notes = ["The domains are the built-in ones, small public corpora that stand for M2D2's Wikipedia and S2ORC."]
    if absent:
        notes.append(
            f"Built-in domains that are left out for want of their text: those of {', '.join(sorted(absent))}."
        )
    return Taxonomy(tuple(leaves), lines=False, most_bytes=MOST_BYTES, general=_general(folder), notes=tuple(notes))


def recognises(folder: Path) -> bool:
    """Return whether a folder holds text for the built-in domains."""
    return any(_files(path) is not None for path in folder.glob("domains/*"))


def _files(corpus: Path) -> dict[str, Path] | None:
    for ending in (".jsonl.gz", ".jsonl"):
        paths = {part: corpus / f"{name}{ending}" for part, name in FILES.items()}
        if all(path.is_file() for path in paths.values()):
            return paths
    return None


def _reader(kept: Kept, file: Path) -> Texts:
    return lambda: kept.rows(file)


def _installed() -> list[tuple[str, str, str, str]]:
    """Return name, super-domain, group and library of each installed domain."""
    short = {DOCUMENTATION: "docs", CODE: "code"}
    return [
        (f"{short[super_domain]}_{library}", super_domain, group, library)
        for super_domain, groups in LIBRARIES.items()
        for group, libraries in groups.items()
        for library in libraries
    ]


def _library(name: str, super_domain: str, group: str, library: str) -> Leaf:
    def documented(part: str) -> Texts:
        return lambda: (row["text"] for row in read_lines(docs.build()[f"{library}/{FILES[part]}"]))

    def written(part: str) -> Texts:
        def read() -> Iterator[str]:
            file = code.build((library,)) / f"{'train' if part == 'train' else 'validation'}.jsonl"
            for row in read_lines(file):
                text = without_docstring(row["text"])
                if part == "train" or _half(text) == part:
                    yield text

        return read

    reader = documented if super_domain == DOCUMENTATION else written
    made_of: Sequence[object] = (
        sorted(fingerprint().items())
        if super_domain == DOCUMENTATION
        else (version(library), digest(Path(code.__file__)))
    )
    mark = hash_of(name, *map(str, made_of), digest(Path(__file__)))
    return Leaf(name, Branch(super_domain, group, 2), {part: reader(part) for part in PARTS}, mark)


def _half(text: str) -> str:
    """Assign a held-out function to validation or test, half to each, by a hash of its text."""
    return PARTS[1:][hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=1).digest()[0] % 2]


def without_docstring(text: str) -> str:
    """Return a function without its docstring, which belongs to another domain."""
    return _DOCSTRING.sub("", text, count=1)


def _general(folder: Path | None) -> Mapping[str, Any]:
    """Return Wikipedia and books, as in `six-domains`; without a folder the documentation of other libraries."""
    if folder is not None and all((folder / "D0" / source).is_dir() for source in GENERAL_SOURCES):
        try:
            return {"path": str(general_file("train", folder)), "validation": str(general_file("validation", folder))}
        except DataError:  # a part of it is missing
            pass
    files = docs.build()
    return {"path": str(files["general/train"]), "validation": str(files["general/validation"]), "max_documents": 2000}
