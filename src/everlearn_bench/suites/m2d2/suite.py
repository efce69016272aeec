"""The suite `m2d2` for recipes, grids and pages."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from everlearn.errors import RecipeError, first_line
from everlearn.files import read_json
from everlearn.grid.template import System
from everlearn.methods.sequential import PLAIN
from everlearn.options import wrong_key
from everlearn_bench.suites import cache
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.m2d2 import builtin_corpus, stream
from everlearn_bench.suites.m2d2.big_bench import big_bench_tasks
from everlearn_bench.suites.m2d2.claims import study_claims
from everlearn_bench.suites.m2d2.corpus_folders import Leaf, Taxonomy
from everlearn_bench.suites.m2d2.domain_names import NAMES
from everlearn_bench.suites.m2d2.options import BY_HAND, SOURCES, StreamOptions
from everlearn_bench.suites.m2d2.ordering import NUMBERS, RANDOM, SIMILAR
from everlearn_bench.suites.m2d2.stream_data import StreamData, stream_data
from everlearn_bench.suites.overlay import Overlay
from everlearn_bench.suites.sources import Fetchable

VARIABLE = "EVERLEARN_M2D2"
HOW = (
    f"Set {VARIABLE}, or `--data` of `everlearn bench`, to a folder with M2D2's tarballs, with folders of train.txt, "
    "valid.txt and test.txt, or with `domains/<corpus>/{train,validation,test}.jsonl.gz` (docs/m2d2.md)."
)
SETTLED = "stream.json"
"""In a folder of data: which of its domains a recipe's addresses mean, and what becomes of their text."""


@register_suite
class M2D2(Suite):
    """Many domains in a taxonomy of two levels: M2D2, the user's, or the built-in substitute.

    The domains and their orders are read from the data (:meth:`on`); before that they are the built-in ones as listed.
    """

    name = stream.NAME
    orders: Mapping[int, Sequence[str]] = {0: builtin_corpus.names()}
    order_names = NUMBERS
    systems: Mapping[str, System] = {
        "small": System("Sequential, smaller base model", ({"name": PLAIN},), wants=("model.path",)),
    }
    """Its base model is set in `grid: {rows: {small: {model.path: …}}}`; the larger one is that of the grid."""
    claims = study_claims(
        (NUMBERS[SIMILAR],),
        [number for name, number in NUMBERS.items() if name.startswith(f"{RANDOM}-")],
        small="small",
        large=PLAIN,
    )
    sources = SOURCES
    by_hand = BY_HAND
    Config = StreamOptions
    stream_data: StreamData | None = None
    """The stream on its data, set by :meth:`on`."""

    @property
    def report(self) -> Path | None:
        """The path of the report on duplicates and on what each domain keeps; None before :meth:`on`."""
        return None if self.stream_data is None else self.stream_data.locate(stream.REPORT)

    @property
    def super_domains(self) -> Mapping[str, str]:
        """The super-domain of each domain, from the data; before :meth:`on`, of M2D2's own and the built-in names."""
        known = builtin_corpus.branches() | NAMES if self.stream_data is None else self.stream_data.branches
        return {name: branch.super_domain for name, branch in known.items()}

    @property
    def training_bytes(self) -> Mapping[str, int]:
        """Bytes of training text of each domain, building the data if it is missing; empty before :meth:`on`."""
        if self.report is None:
            return {}
        return {name: int(parts["train"][1]) for name, parts in read_json(self.report)["kept"].items()}

    @property
    def first(self) -> tuple[str, ...]:
        """The domains in the order of the taxonomy, which needs no computation."""
        return self.domains

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains, in the order of the taxonomy."""
        return builtin_corpus.names() if self.stream_data is None else self.stream_data.names

    def on(self, overlay: Overlay, data: Path | None = None) -> Self:
        """Return the suite with the domains and orders of its data."""
        suite = super().on(overlay, data)
        suite.stream_data = stream_data(_folder(data), suite.config, cache.cache_folder(stream.NAME))
        suite.orders = suite.stream_data.orders
        return suite

    def selected_sources(self, config: StreamOptions) -> tuple[Fetchable, ...]:
        """Return the tarballs of the domains that the keys select.

        Raises:
            RecipeError: the keys name something that is not part of M2D2.
        """
        listed = Taxonomy(tuple(Leaf(name, branch, {}, "") for name, branch in NAMES.items()))
        selected = {leaf.name for leaf in stream.choose(listed, config)}
        return tuple(source for source in self.sources if source.path.removesuffix(".tar.gz") in selected)

    def locate(self, inside: str) -> Path:
        """Return a part of a domain, the report on duplicates, or the similar order with its details.

        Raises:
            RecipeError: there is none, or `stream.json` of the data folder is not valid.
        """
        return self._required_data().locate(inside)

    def begin(self, raw: dict[str, Any]) -> None:
        """Add the domains of the data, and its general text."""
        data = self._required_data()
        raw["domains"] = [data.domain(each) for each in data.names]
        raw["general"] = data.general
        if self.config.big_bench is not None:
            raw["end_tasks"] = big_bench_tasks(_folder(self.data), self.config.big_bench)
            raw["evaluation"]["end_tasks"] = "groups"
        if data.taxonomy.lines:
            # A line continues the previous one: they are read as one text, as the authors of the dataset did.
            raw["data"]["isolate_documents"] = False

    def finish(self, raw: dict[str, Any]) -> None:
        """Set notes on the order and on the origin of the text."""
        raw["run"]["notes"] = self._required_data().notes([item["name"] for item in raw["domains"]])

    def _required_data(self) -> StreamData:
        """Return the stream of the configured data, or of the suite's default folder."""
        if self.stream_data is not None:
            return self.stream_data
        folder = _folder(None)
        return stream_data(folder, _settled(folder), cache.cache_folder(stream.NAME))


def _settled(folder: Path | None) -> StreamOptions:
    """Return the stream settings in the data folder; recipes name files only, so cannot hold them."""
    if folder is None or not (file := folder / SETTLED).is_file():
        return StreamOptions()
    try:
        return StreamOptions.model_validate(json.loads(cache.read_text(file)))
    except json.JSONDecodeError as error:
        raise RecipeError(f"'{file}' is no JSON: {first_line(error)}.") from None
    except ValidationError as error:
        raise RecipeError(wrong_key(StreamOptions, error, where=f" in '{file}'")) from None


def _folder(data: Path | None) -> Path | None:
    """Return the data folder; None for installed libraries.

    Raises:
        DataError: the named folder does not exist.
    """
    folder: Path | None = None
    if data is not None or os.environ.get(VARIABLE) or (cache.cache_folder(stream.NAME) / cache.FETCHED).is_dir():
        folder = cache.data_folder(stream.NAME, VARIABLE, HOW, data)
    return folder
