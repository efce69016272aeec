"""Find rows of a table that differ only in one option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everlearn import wording
from everlearn.grid.summary import Line
from everlearn.methods import build, names

FEWEST = 3
"""Minimum number of values of an option for a figure."""


@dataclass(frozen=True)
class Family:
    """Rows that differ only in one option.

    Attributes:
        label: the methods, and the options in which the family differs from the others.
        lines: value of the option → row.
    """

    label: str
    lines: dict[Any, Line]


@dataclass(frozen=True)
class SweptOption:
    """An option that was swept.

    Attributes:
        option: name of the option: a method's, or a key of the recipe.
        values: numbers in ascending order, or names in the order of the rows.
        families: families of rows in which it was swept.
    """

    option: str
    values: list[Any]
    families: list[Family]


def swept(lines: Sequence[Line]) -> list[SweptOption]:
    """Return the options with at least three values in rows that are equal in all other options."""
    settings = [(line, _labels(line), _options(line)) for line in lines]
    keys = list(dict.fromkeys(key for _, _, options in settings for key in options))
    swept_options = []
    for key in keys:
        groups: dict[tuple[Any, ...], dict[Any, Line]] = {}
        others: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line, labels, options in settings:
            mine = _filled(options, labels, keys)
            if key not in mine:
                continue
            rest = {name: value for name, value in mine.items() if name != key}
            family = (labels, tuple(sorted((name, str(value)) for name, value in rest.items())))
            groups.setdefault(family, {})[_shown(mine[key])] = line
            others[family] = rest
        large_groups = {family: rows for family, rows in groups.items() if len(rows) >= FEWEST}
        if not large_groups:
            continue
        if not all(isinstance(value, float) for rows in large_groups.values() for value in rows):
            large_groups = {
                family: {wording.value(value): line for value, line in rows.items()}
                for family, rows in large_groups.items()
            }
        values = list(dict.fromkeys(value for rows in large_groups.values() for value in rows))
        families = [
            Family(_label(family[0], others[family], [others[each] for each in large_groups]), rows)
            for family, rows in large_groups.items()
        ]
        group, _, option = key.partition(".")
        numeric = isinstance(values[0], float)
        swept_options.append(
            SweptOption(
                option if group in (*names(), "train") else key, sorted(values) if numeric else values, families
            )
        )
    return swept_options


def _labels(line: Line) -> tuple[str, ...]:
    """Return the methods of a row, by name."""
    own = [name for name, options in line.facts.options.items() if isinstance(options, Mapping) and name in names()]
    return tuple(own) or (line.entry.split("-")[0],)


def _options(line: Line) -> dict[str, Any]:
    """Return options that differ from the defaults: `method.option`, and keys of the recipe."""
    labels = _labels(line)
    options: dict[str, Any] = {}
    for key, value in line.facts.options.items():
        if key in labels and isinstance(value, Mapping):
            options |= {f"{key}.{option}": each for option, each in value.items()}
        else:
            options[key if "." in key else f"{labels[0]}.{key}"] = value
    return options


def _filled(options: Mapping[str, Any], labels: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    """Return the options with the defaults of those that other rows set."""
    filled = dict(options)
    for label in set(labels) & set(names()):
        config = build(label).config.model_dump(mode="json")
        for key in keys:
            method, _, option = key.partition(".")
            if method == label and option in config:
                filled.setdefault(key, config[option])
    return filled


def _shown(value: Any) -> float | str:
    """Return a number as a float, and anything else as a text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return wording.value(value)


def _label(labels: Sequence[str], own: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]]) -> str:
    titles = " + ".join(build(label).title if label in names() else label for label in labels)
    differing = [key for key in own if any(other.get(key) != own[key] for other in all_of_them if key in other)]
    settings = ", ".join(f"{key.rpartition('.')[2]} {wording.value(own[key])}" for key in differing)
    return f"{titles} ({settings})" if settings else titles
