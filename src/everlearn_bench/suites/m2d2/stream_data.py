"""A stream of M2D2's kind on its data: the selected domains, their text, and their orders."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everlearn.data.corpus import Domain
from everlearn.data.documents import read_documents
from everlearn.errors import RecipeError, did_you_mean
from everlearn.files import digest, read_json, write_json
from everlearn_bench.suites import cache as suite_cache
from everlearn_bench.suites.m2d2 import builtin_corpus, corpus_folders, embedding, ordering, stream
from everlearn_bench.suites.m2d2.corpus_folders import GENERAL, PARTS, Taxonomy
from everlearn_bench.suites.m2d2.options import StreamOptions
from everlearn_bench.suites.m2d2.ordering import Orders

ORDER = "order.json"
BACKGROUND = 5
"""Samples of general text for each of a domain: the study had 50,000 and 10,000."""


class StreamData:
    """The domains of a stream and everything built from them; text is read on demand.

    Args:
        taxonomy: all available domains.
        options: which domains are used, and how their text is processed.

    Raises:
        RecipeError: the settings name a missing domain.
    """

    def __init__(self, taxonomy: Taxonomy, options: StreamOptions) -> None:
        self.taxonomy, self.options = taxonomy, options
        self.leaves = stream.choose(taxonomy, options)
        self.branches = {leaf.name: leaf.branch for leaf in self.leaves}
        self.names = tuple(self.branches)
        makers: dict[int, Callable[[], tuple[str, ...]]] = {
            ordering.NUMBERS[ordering.SIMILAR]: lambda: tuple(self.similarity["domains"]),
            ordering.NUMBERS[ordering.SWAPPED]: lambda: ordering.swapped(self.similarity["domains"], self.branches),
        }
        if options.order is not None:
            file = Path(options.order)
            makers[ordering.NUMBERS[ordering.FILE]] = lambda: ordering.from_file(file, self.names)
        for number in range(1, ordering.SHUFFLES + 1):
            drawn = functools.partial(ordering.shuffled, self.names, number)
            makers[ordering.NUMBERS[f"{ordering.RANDOM}-{number}"]] = drawn
        self.orders = Orders(makers)

    @functools.cached_property
    def folder(self) -> Path:
        """The folder with the text of the stream, built if it is missing."""
        return stream.build(self.taxonomy, self.leaves, self.options)

    @functools.cached_property
    def similarity(self) -> dict[str, Any]:
        """The order `similar` (``domains``), and how it was computed.

        That is ``by``, ``samples``, and ``start``, the similarity of each domain to general text.
        """
        return dict(read_json(self.similar / ORDER))

    @functools.cached_property
    def similar(self) -> Path:
        """The folder with the order `similar`, built if it is missing."""
        by, samples = self.options.embedding or "hashed TF-IDF", self.options.samples
        code = [digest(Path(module)) for module in (__file__, embedding.__file__, ordering.__file__)]
        general = dict(self.taxonomy.general or {})
        of = [corpus_folders.mark_of(Path(general["path"]))] if general else []
        branches = {name: list(branch) for name, branch in self.branches.items()}

        def write(folder: Path) -> None:
            embed = embedding.hashed_tf_idf if self.options.embedding is None else embedding.by_encoder(by)
            texts = {name: list(itertools.islice(self.texts(name), samples)) for name in self.names}
            if general:
                corpus = Domain(name=GENERAL, **general)
                documents = itertools.islice(read_documents(corpus), BACKGROUND * samples)
                texts[GENERAL] = [document.text for document, _ in documents]
            vectors = embed(texts)
            start = vectors.pop(GENERAL, None)
            order = ordering.similar(self.branches, vectors, start)
            near = {} if start is None else {n: round(embedding.cosine(vectors[n], start), 4) for n in order}
            write_json(folder / ORDER, {"domains": list(order), "by": by, "samples": samples, "start": near})

        made_by = (*code, by, str(samples), self.folder.name, json.dumps(branches), *of)
        return suite_cache.derived(stream.NAME, "order", (), made_by, write)

    def texts(self, name: str) -> Any:
        """Return the training documents of a domain, those first that come first by their hashes."""
        documents = stream.read(self.folder, name, "train")
        return iter(stream.first_by_hash(documents, None, False)) if self.taxonomy.lines else documents

    def domain(self, name: str) -> dict[str, Any]:
        """Return a domain as in a recipe."""
        place = self.folder / name
        return {
            "name": name,
            "path": str(place / "train.jsonl"),
            "validation": str(place / f"{self.options.measured}.jsonl"),
            "group": self.branches[name].super_domain,
        }

    @property
    def general(self) -> dict[str, Any] | None:
        """The general text of the data, as in a recipe; None if there is none."""
        return {"name": GENERAL, **self.taxonomy.general} if self.taxonomy.general else None

    def notes(self, order: Sequence[str]) -> list[str]:
        """Return sentences for the report of a run: the order, if it is a known one, and how the text was built."""
        sentences = [*self.taxonomy.notes, *stream.sentences(self.folder)]
        if len(order) < 2:  # training on a single domain
            return sentences
        name = self.orders.name_of(order)
        how = ""
        if name in (ordering.SIMILAR, ordering.SWAPPED):
            how = f", by {self.similarity['by']} of {self.similarity['samples']:,} documents a domain"
        listed = f"Order{f' `{name}`' if name else ''}{how}: {' → '.join(order)}."
        return [listed, *sentences]

    def locate(self, inside: str) -> Path:
        """Return the file at an address.

        Raises:
            RecipeError: there is none.
        """
        general = self.taxonomy.general or {}
        if inside in (f"{GENERAL}/train.jsonl", f"{GENERAL}/valid.jsonl") and general:
            return Path(str(general["path" if "train" in inside else "validation"]))
        known = [f"{name}/{part}.jsonl" for name in self.names for part in PARTS] + [stream.REPORT, ORDER]
        if inside not in known:
            raise RecipeError(
                f"The suite 'm2d2' has no '{inside}' here.{did_you_mean(inside, known)} Domains are those of the data "
                f"({len(self.names)} without settings of the stream); docs/m2d2.md says how to name it."
            )
        return (self.similar if inside == ORDER else self.folder) / inside


@functools.lru_cache(maxsize=8)
def stream_data(folder: Path | None, options: StreamOptions, cache: Path) -> StreamData:
    """Return the stream on a data folder; cached by its arguments.

    Args:
        folder: the data folder; None for installed libraries.
        options: options of the stream.
        cache: the cache folder; another one gives another stream.
    """
    if folder is None or builtin_corpus.recognises(folder):
        return StreamData(builtin_corpus.taxonomy(folder), options)
    return StreamData(corpus_folders.read_folder(folder), options)
