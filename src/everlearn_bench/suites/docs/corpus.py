"""Six domains and general knowledge, from the documentation of installed libraries.

The six domains are libraries that are installed with everlearn anyway; general knowledge (D0) is the standard library
and all other dependencies of everlearn. The same versions give the same files, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from everlearn.data.near_duplicates import Probes
from everlearn.data.packing import chunks
from everlearn.data.shingles import words_of
from everlearn.errors import DataError, did_you_mean
from everlearn.files import damage, digest, new_folder, read_json, write_json, write_text
from everlearn_bench.suites import cache
from everlearn_bench.suites.docs import reading, tasks
from everlearn_bench.suites.docs.reading import STANDARD_LIBRARY, Doc, Passage, Split

Progress = Callable[[str, int, int], None]

DOMAINS = ("sympy", "networkx", "pandas", "matplotlib", "scipy", "torch")
GENERAL = tuple(
    f"{STANDARD_LIBRARY} numpy transformers datasets accelerate peft pydantic pydantic_core typer rich jinja2 "
    "markupsafe huggingface_hub fsspec pyarrow tokenizers safetensors dill multiprocess httpx httpcore httpx2 "
    "httpcore2 anyio h11 idna requests urllib3 aiohttp click setuptools pip tqdm packaging filelock yaml PIL fontTools "
    "pyparsing contourpy cycler dateutil pygments markdown_it mpmath psutil regex typing_extensions".split()
)
"""What everlearn's dependencies bring along; absent ones are skipped, because that depends on their versions."""

MOST_CHARACTERS = 5_000_000
"""A domain's size at most: a longer one keeps the documents that come first in the order of their hashes."""

_FINGERPRINT = "fingerprint.json"
_REPEATED = 120
"""Letters and digits from which a paragraph may not occur a second time."""
_CROWDED = 0.4
"""Share of a library's documents above which a subpackage is divided into its own subpackages."""
_SPLITS: tuple[Split, ...] = ("test", "validation", "train")
_NOT_WORD = re.compile(r"[\W_]+")
_PARAGRAPHS = re.compile(r"\n[ \t]*\n")


def documents(library: str) -> list[Doc]:
    """Return the distinct documents of one library, ordered by their hashes.

    A tenth each is for test and validation (general knowledge: a twentieth for validation, no test).

    Args:
        library: a name of :data:`DOMAINS` or :data:`GENERAL`.

    Raises:
        DataError: the name is unknown or the library is not installed.
    """
    if library not in DOMAINS + GENERAL:
        raise DataError(f"The suite `docs` has no library '{library}'.{did_you_mean(library, DOMAINS + GENERAL)}")
    distinct: dict[str, Passage] = {}
    for passage in reading.passages(library):
        distinct.setdefault(_hash(passage.text), passage)
    shares = (10, 20) if library in DOMAINS else (0, 5)
    subpackage = _namer([p.module for p in distinct.values() if p.is_docstring])
    return [
        Doc(p.text, subpackage(p.module) if p.is_docstring else "", _split(key, *shares), key)
        for key, p in sorted(distinct.items())
    ]


def build(folder: Path | None = None, progress: Progress | None = None) -> dict[str, Path]:
    """Write the files of the suite, unless they exist for exactly these versions of the libraries.

    No document, and no paragraph of 120 letters and digits or more, occurs twice in all files: texts for test are taken
    first, then those for validation, then those for training, and domains precede general text.

    Args:
        folder: output folder; by default :func:`cache_folder`.
        progress: called as ``progress(library, done, total)`` while libraries are read.

    Returns:
        The files by name: ``<domain>/{train,validation,apart,test}``, ``general/{train,validation,apart}`` (JSON lines
        with ``text``; `apart` is `validation` without what the training text nearly repeats) and
        ``tasks/<domain>_{train,test}`` (with ``text`` and ``label``).

    Raises:
        DataError: a domain's library is not installed, or `folder` has other content.
    """
    versions = fingerprint()
    folder = folder if folder is not None else cache_folder(versions)
    names = [f"{domain}/{split}" for domain in DOMAINS for split in ("train", "validation", "apart", "test")]
    names += ["general/train", "general/validation", "general/apart"]
    names += [f"tasks/{domain}_{part}" for domain in DOMAINS for part in ("train", "test")]
    paths = {name: folder / f"{name}.jsonl" for name in names}
    if (folder / _FINGERPRINT).is_file():
        if damage(folder) is None and read_json(folder / _FINGERPRINT) == versions:
            return paths
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} holds something else than the suite `docs`: name an empty or a new folder.")
    libraries = [library for library in DOMAINS + GENERAL if library in DOMAINS or versions[library]]
    corpora: dict[str, list[Doc]] = {}
    for done, library in enumerate(libraries):
        if progress:
            progress(library, done, len(libraries))
        corpora[library] = documents(library)
    corpora = _without_repetition(corpora)
    general = sorted((doc for name in corpora if name not in DOMAINS for doc in corpora[name]), key=lambda d: d.key)
    corpora = {domain: _capped(corpora[domain]) for domain in DOMAINS} | {"general": general}
    with new_folder(folder) as new:
        for name in names:
            corpus, _, part = name.partition("/")
            if corpus == "tasks":
                domain, _, part = part.rpartition("_")
                rows = tasks.examples(domain, corpora[domain], part)
            else:
                rows = [{"text": text} for text in _texts(corpora[corpus], part)]
            write_text(new / f"{name}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        write_json(new / _FINGERPRINT, versions)
    if progress:
        progress("done", len(libraries), len(libraries))
    return paths


def cache_folder(versions: Mapping[str, str | None] | None = None) -> Path:
    """Return the cache folder of these versions of the libraries, by default of the :func:`fingerprint`.

    Environments with other versions do not replace it.
    """
    mark = hashlib.blake2b(json.dumps(versions or fingerprint()).encode(), digest_size=6).hexdigest()
    return cache.cache_folder(f"docs-{mark}")


def fingerprint() -> dict[str, str | None]:
    """Return what determines the content of the files: the versions of the libraries and the code that reads them."""
    code = "".join(digest(Path(module)) for module in (__file__, reading.__file__, tasks.__file__) if module)
    versions = {library: reading.version(library) for library in DOMAINS + GENERAL}
    return {"code": hashlib.blake2b(code.encode(), digest_size=16).hexdigest(), **versions}


def _hash(text: str) -> str:
    letters = _NOT_WORD.sub("", text.lower())
    return hashlib.blake2b(letters.encode(), digest_size=12).hexdigest()


def _split(key: str, test: int, held_out: int) -> Split:
    percent = int(key[:8], 16) % 100
    return "test" if percent < test else "validation" if percent < held_out else "train"


def _namer(modules: list[tuple[str, ...]]) -> Callable[[tuple[str, ...]], str]:
    """Return a function that names the subpackage of a module.

    A subpackage with most of the library (pandas.core) is split again.
    """
    counts = Counter(module[0] for module in modules if module)
    crowded = {name for name, count in counts.items() if count > _CROWDED * len(modules)}
    return lambda module: ".".join(module[: 2 if module[:1] and module[0] in crowded else 1])


def _without_repetition(corpora: dict[str, list[Doc]]) -> dict[str, list[Doc]]:
    """Drop every document and long paragraph that occurred before, anywhere."""
    kept: dict[str, list[Doc]] = {library: [] for library in corpora}
    documents_seen: set[str] = set()
    paragraphs_seen: set[str] = set()
    for split in _SPLITS:
        for library, docs in corpora.items():
            for doc in docs:
                if doc.split != split or doc.key in documents_seen:
                    continue
                documents_seen.add(doc.key)
                text = "\n\n".join(_new_paragraphs(doc.text, paragraphs_seen))
                if len(text) >= reading.SHORTEST:
                    kept[library].append(replace(doc, text=text))
    return kept


def _texts(docs: Sequence[Doc], part: str) -> list[str]:
    """Return the texts of a split; as `apart`, those of the validation split that the training text does not contain.

    `validation` keeps all of them: results on record were measured on it.
    """
    texts = [doc.text for doc in docs if doc.split == ("validation" if part == "apart" else part)]
    return texts if part != "apart" else _apart(texts, _texts(docs, "train"))


def _apart(held_out: Sequence[str], learnt: Sequence[str]) -> list[str]:
    """Leave out the texts that the learnt ones contain by the measure of :mod:`everlearn.data.leaks`."""
    probes = Probes()
    for chunk in chunks(held_out):
        probes.add("held out", words_of(chunk))
    search = probes.search()
    for chunk in chunks(learnt):
        search.add(words_of(chunk))
    return [text for text, inside in zip(held_out, search.inside(), strict=True) if not inside]


def _new_paragraphs(text: str, seen: set[str]) -> Iterable[str]:
    for paragraph in _PARAGRAPHS.split(text):
        letters = _NOT_WORD.sub("", paragraph.lower()) if len(paragraph) >= _REPEATED else ""
        if len(letters) >= _REPEATED:
            if letters in seen:
                continue
            seen.add(letters)
        yield paragraph


def _capped(docs: list[Doc]) -> list[Doc]:
    """Return the documents that come first by their hashes and fit into the size of a domain."""
    kept, size = [], 0
    for doc in sorted(docs, key=lambda doc: doc.key):
        size += len(doc.text)
        if size > MOST_CHARACTERS:
            break
        kept.append(doc)
    return kept
