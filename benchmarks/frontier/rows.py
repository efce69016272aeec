"""The rows of the comparison (rows.yaml) as entries of a sweep, and what has been measured of them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from everlearn.config.recipe import load
from everlearn.errors import RunError
from everlearn.grid import Line, RecipeTemplate, RowSpec, load_results, read_variations, summarise

HERE = Path(__file__).parent
STREAMS = ("masked", "causal")
Way = list[dict[str, Any]]
"""Methods that work together, as a recipe has them; a key with a point is one of the recipe (:func:`parts_of`)."""


def places(recipe: Path, data: Path) -> list[str]:
    """The corpora's files, as changes of a recipe; a suite's own text is where it is."""
    raw = yaml.safe_load(recipe.read_text())
    groups = {f"domains.{number}": domain for number, domain in enumerate(raw["domains"])} | {"general": raw["general"]}
    files = ((f"{key}.{part}", group[part]) for key, group in groups.items() for part in ("path", "validation"))
    return [f"{key}={data / file}" for key, file in files if not file.startswith("suite:")]


def variants(row: Iterable[Any]) -> Iterator[Way]:
    """The variants of a row: one for every combination of the values that are lists."""
    for item in row:
        methods = item if isinstance(item, list) else [item]
        options = [(n, key, value) for n, method in enumerate(methods) for key, value in method.items()]
        values = [value if isinstance(value, list) else [value] for _, _, value in options]
        for chosen in itertools.product(*values):
            variant: Way = [{} for _ in methods]
            for (number, key, _), value in zip(options, chosen, strict=True):
                variant[number][key] = value
            yield variant


def rows_of(stream: str, file: Path = HERE / "rows.yaml") -> dict[str, list[Way]]:
    """The rows that a stream has, in the order of the runs; the penalties last."""
    raw = yaml.safe_load(file.read_text())
    return {name: list(variants(row)) for group in ("both", stream, "penalties") for name, row in raw[group].items()}


def parts_of(variant: Way) -> tuple[Way, dict[str, Any]]:
    """The methods, and what is changed of the recipe: keys with a point, as `train.learning_rate`."""
    methods = [{key: value for key, value in method.items() if "." not in key} for method in variant]
    return methods, {key: value for method in variant for key, value in method.items() if "." in key}


def as_methods(variants: Iterable[Way]) -> str:
    """As `everlearn sweep --methods` reads them."""
    each = (parts_of(variant)[0] for variant in variants)
    return ",".join(json.dumps(methods[0] if len(methods) == 1 else methods) for methods in each)


def sets_of(variant: Way) -> tuple[str, ...]:
    """As `everlearn sweep --set` reads what is changed of the recipe."""
    return tuple(f"{key}={json.dumps(value)}" for key, value in parts_of(variant)[1].items())


def entries(rows: Mapping[str, Sequence[Way]], recipe: Path) -> dict[str, dict[str, Way]]:
    """Return, for each row, its entries by their names, which are those with all steps."""
    suite = RecipeTemplate(load(recipe, ()), recipe.stem)

    def name(variant: Way) -> str:
        return named(read_variations(as_methods([variant]), sets_of(variant), suite)[0])

    return {row: {name(variant): variant for variant in each} for row, each in rows.items()}


def named(entry: RowSpec) -> str:
    """An entry's name, however many steps its compute leaves it."""
    return without_steps(entry.name)


def without_steps(name: str) -> str:
    """The same of a name."""
    return re.sub(r"-max_steps\d+$", "", name)


def lines_of(folder: Path, seeds: Container[int] | None = None, *, without: Container[int] = ()) -> dict[str, Line]:
    """What was measured: name (:func:`named`) → its line; with `seeds` of these alone, and never of those `without`.

    Raises:
        RunError: a way was measured with two numbers of steps, as before and after what it declares was corrected.
    """
    cells = load_results(folder) if folder.is_dir() else []
    kept = [
        cell
        for cell in cells
        if (seed := cell.grid.seed) is None or ((seeds is None or seed in seeds) and seed not in without)
    ]
    lines: dict[str, Line] = {}
    for line in summarise(kept) if kept else ():
        other = lines.setdefault(without_steps(line.entry), line)
        if other is not line:
            raise RunError(
                f"'{folder}' has the same way with two numbers of steps, {other.entry} and {line.entry}: remove the "
                "cells of the one that is out of date."
            )
    return lines


def reads_old_text(line: Line) -> bool:
    """Whether it learns from old text again: of earlier domains, or general text, which the base model had."""
    options = line.facts.options
    each = [options, *(own for own in options.values() if isinstance(own, Mapping))]
    return line.facts.old_data or any(own.get("source") in ("general", "both") for own in each)
