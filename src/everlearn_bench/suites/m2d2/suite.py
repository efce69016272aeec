"""The suite `m2d2` for recipes, grids and pages."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from everlearn.errors import RecipeError, did_you_mean, first_line
from everlearn.files import read_json
from everlearn.grid.template import System
from everlearn.methods.sequential import PLAIN
from everlearn.options import wrong_value
from everlearn_bench.suites import cache as made
from everlearn_bench.suites.base import Suite, register_suite
from everlearn_bench.suites.m2d2 import built_in, stream
from everlearn_bench.suites.m2d2.bound import Bound, bind
from everlearn_bench.suites.m2d2.claims import study_claims
from everlearn_bench.suites.m2d2.layouts import GENERAL, Leaf, Taxonomy
from everlearn_bench.suites.m2d2.names import NAMES
from everlearn_bench.suites.m2d2.ordering import NUMBERS, RANDOM, SIMILAR
from everlearn_bench.suites.m2d2.sources import BY_HAND, SOURCES
from everlearn_bench.suites.settings import PROGRAMS, Settings, StreamSettings, steps_of, with_samples
from everlearn_bench.suites.sources import Fetchable

VARIABLE = "EVERLEARN_M2D2"
HOW = (
    f"Set {VARIABLE}, or `--data` of `everlearn bench`, to a folder with M2D2's tarballs, with folders of train.txt, "
    "valid.txt and test.txt, or with `domains/<corpus>/{train,validation,test}.jsonl.gz` (docs/m2d2.md)."
)
SETTLED = "stream.json"
"""In a folder of data: which of its domains a recipe's addresses mean, and what becomes of their text."""
BATCH, BLOCK = 16, 512
LEARNING_RATE = 5e-5


@register_suite
class M2D2(Suite):
    """Many domains in a taxonomy of two levels: M2D2's own, your own, or the built-in ones.

    The domains and their orders are read from the data (:meth:`on`); before that they are the built-in ones as listed.
    """

    name = stream.NAME
    orders: Mapping[int, Sequence[str]] = {0: built_in.names()}
    order_names = NUMBERS
    tasks: Mapping[str, str] = {}
    systems: Mapping[str, System] = {
        "small": System("Sequential, smaller base model", ({"name": PLAIN},), wants=("model.path",)),
    }
    """The settings name its base model (`entries: {small: {model.path: …}}`); the larger one is that of the grid."""
    claims = study_claims(
        (NUMBERS[SIMILAR],),
        [number for name, number in NUMBERS.items() if name.startswith(f"{RANDOM}-")],
        small="small",
        large=PLAIN,
    )
    sources = SOURCES
    by_hand = BY_HAND
    lacks = (*PROGRAMS, "max_train", "prompts.names", "prompts.cut")
    domains: tuple[str, ...] = built_in.names()
    """The domains as listed: the order that is used where no order matters."""
    bound: Bound | None = None
    """The stream on its data, set by :meth:`on`."""

    @property
    def report(self) -> Path | None:
        """The path of the report on duplicates and on what each domain keeps; None before :meth:`on`."""
        return None if self.bound is None else self.bound.locate(stream.REPORT)

    @property
    def super_domains(self) -> Mapping[str, str]:
        """Domain → super-domain, read from the data; before :meth:`on`, of M2D2's own and the built-in names."""
        known = built_in.branches() | NAMES if self.bound is None else self.bound.branches
        return {name: branch.super_domain for name, branch in known.items()}

    @property
    def training_bytes(self) -> Mapping[str, int]:
        """Domain → bytes of its training text, building the data if it is missing; empty before :meth:`on`."""
        if self.report is None:
            return {}
        return {name: int(parts["train"][1]) for name, parts in read_json(self.report)["kept"].items()}

    @property
    def first(self) -> tuple[str, ...]:
        """The domains as listed, so that no order must be computed where none matters."""
        return self.domains

    def on(self, settings: Settings, data: Path | None) -> M2D2:
        """Return the suite with the domains and orders of its data."""
        suite, bound = M2D2(), _bound(settings, data)
        suite.domains, suite.orders, suite.bound = bound.names, bound.orders, bound
        return suite

    def wanted(self, settings: Settings) -> tuple[Fetchable, ...]:
        """Return the tarballs of the domains that the settings select.

        Raises:
            RecipeError: the settings name something that is not part of M2D2.
        """
        listed = Taxonomy(tuple(Leaf(name, branch, {}, "") for name, branch in NAMES.items()))
        wanted = {leaf.name for leaf in stream.choose(listed, settings.stream or StreamSettings())}
        return tuple(source for source in self.sources if source.path.removesuffix(".tar.gz") in wanted)

    def check(self, settings: Settings) -> None:
        """Refuse settings without meaning, options of end tasks, and own text other than general text."""
        super().check(settings)
        if ends := settings.end_tasks.given():
            raise RecipeError(f"`end_tasks.{next(iter(ends))}` is set in the settings, but `m2d2` has no end tasks.")
        if unknown := sorted(set(settings.corpora or {}) - {GENERAL}):
            raise RecipeError(f"`corpora.{unknown[0]}` is set, but of `m2d2` only `corpora.{GENERAL}` can be your own.")
        if settings.model is None:
            raise RecipeError("The grid needs a base model: `--model`, or `model` in the settings.")

    def locate(self, inside: str) -> Path:
        """Return a part of a domain, the report on duplicates, or the similar order with its details.

        Raises:
            RecipeError: there is none, or `stream.json` of the data folder is not valid.
        """
        folder = _folder(None)
        return bind(folder, _settled(folder), made.cache_folder(stream.NAME)).locate(inside)

    def recipe(
        self,
        order: int | Sequence[str],
        *,
        settings: Settings,
        data: Path | None,
        method: Sequence[Mapping[str, Any]],
        seed: int,
        name: str,
        folder: Path,
    ) -> dict[str, Any]:
        """Return the recipe of a run over the domains, with one pass over each unless a number of steps is set."""
        self.check(settings)
        bound, given = _bound(settings, data), settings.given()
        names = bound.checked(order)
        batch, accumulate, block = given.get("batch", BATCH), given.get("accumulate", 1), given.get("block_size", BLOCK)
        length: dict[str, Any] = {"num_train_epochs": 1}
        if settings.steps is not None or settings.budget_tokens is not None:
            length = {"max_steps": steps_of(settings.steps, settings.budget_tokens, batch * accumulate * block, 0)}
        general = bound.general((settings.corpora or {}).get(GENERAL))
        # A line continues the previous one: they are read as one text, as the authors of the dataset did.
        lines = {"isolate_documents": False} if bound.taxonomy.lines else {}
        return {
            "model": given["model"],
            "domains": [bound.domain(each) for each in names],
            **({"general": general} if general else {}),
            "method": with_samples(method, settings.samples),
            "data": {"block_size": block, **lines},
            "train": {
                "per_device_train_batch_size": batch,
                "gradient_accumulation_steps": accumulate,
                "learning_rate": given.get("learning_rate", LEARNING_RATE),
                "lr_scheduler_type": "cosine_with_min_lr",
                "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
                "warmup_steps": 0.01,
                "weight_decay": 0.1,
                "adam_beta2": 0.95,
                "max_grad_norm": 1.0,
                **length,
                **settings.train,
            },
            "evaluation": {"blocks": given.get("blocks", 128), "batch_size": 16},
            "run": {"name": name, "seed": seed, "folder": str(folder), "notes": bound.notes(names)},
        }


def _bound(settings: Settings, data: Path | None) -> Bound:
    """Return the stream of these settings; without a data folder that of installed libraries."""
    return bind(_folder(data), settings.stream or StreamSettings(), made.cache_folder(stream.NAME))


def _settled(folder: Path | None) -> StreamSettings:
    """Return the stream settings in the data folder, the only place for them with a recipe, which names files only."""
    if folder is None or not (file := folder / SETTLED).is_file():
        return StreamSettings()
    try:
        return StreamSettings.model_validate(json.loads(made.read_text(file)))
    except json.JSONDecodeError as error:
        raise RecipeError(f"'{file}' is no JSON: {first_line(error)}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(key, StreamSettings.model_fields)
            raise RecipeError(f"Unknown key `{key}` in '{file}'.{hint}") from None
        raise RecipeError(f"`{key}` in '{file}': {wrong_value(first)}.") from None


def _folder(data: Path | None) -> Path | None:
    """Return the data folder; None for installed libraries.

    Raises:
        DataError: the named folder does not exist.
    """
    folder: Path | None = None
    if data is not None or os.environ.get(VARIABLE) or (made.cache_folder(stream.NAME) / made.FETCHED).is_dir():
        folder = made.data_folder(stream.NAME, VARIABLE, data, HOW)
    return folder
