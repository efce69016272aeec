"""Runs of one recipe that differ in their seed only are one line of a table: their mean, and how far seeds move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.comparison.intervals import over_runs
from everlearn.comparison.recipe_differences import UNKNOWN, repeats, unlike
from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import Estimate

_LONGEST, _LONGEST_OWN, _PARTS = 60, 44, 3
"""Characters of a label and of what it adds to the method's title; settings that it names."""


@dataclass(frozen=True)
class Pool:
    """Runs of one recipe."""

    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[str]:
        """Their seeds, as texts."""
        return [str(run.results.get("seed")) for run in self.runs]


def pools(runs: Sequence[Run]) -> tuple[Pool, ...]:
    """Runs that differ in nothing but their seeds together, in the order in which they first come.

    Runs without a recipe, and two runs with the same seed, stay apart: nothing says that they repeat each other.
    """
    groups: list[list[Run]] = []
    for run in runs:
        known = run.recipe is not None and run.results.get("seed") is not None
        group = next((each for each in groups if known and _takes(each, run)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    labels = _labels([group[0] for group in groups])
    return tuple(Pool(label, tuple(group)) for label, group in zip(labels, groups, strict=True))


def _takes(group: Sequence[Run], run: Run) -> bool:
    """Whether a run is one more seed of a group."""
    seeds = [other.results.get("seed") for other in group]
    alone = group[0].recipe is None or None in seeds or run.results["seed"] in seeds
    return not alone and repeats(group[0], run)


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """One run's estimate as it is; of several the mean with its interval over runs; absent where one lacks it."""
    if len(estimates) == 1:
        return estimates[0]
    values = [estimate.value for estimate in estimates if estimate.value is not None]
    return over_runs(values) if values and len(values) == len(estimates) else Estimate()


def _labels(leads: Sequence[Run]) -> list[str]:
    """What each pool is called: the method's title, and what sets it apart from the others.

    These are the method's options, where several pools have the same title, and every setting of the configuration
    that the pools do not share: a learning rate is a part of what is compared, as a strength is. What is too much for
    a label is in the table of what differs; the run's name stands in its place.
    """
    configuration = unlike(leads).configuration if len(leads) > 1 else {}
    names = []
    for position, run in enumerate(leads):
        twins = [other for other in leads if other.title == run.title]
        parts = _options_apart(run, twins)
        parts += [f"{key} {values[position]}" for key, values in configuration.items()]
        if len(twins) > 1 and not parts:
            parts = _amounts_apart(run, twins)
        own = ", ".join(parts)
        if len(parts) > _PARTS or len(own) > _LONGEST_OWN or (len(twins) > 1 and not own):
            own = run.name
        names.append(f"{run.title} · {own}" if own else run.title)
    names = [
        name if names.count(name) == 1 or name.endswith(f" · {run.name}") else f"{name} · {run.name}"
        for name, run in zip(names, leads, strict=True)
    ]
    labels = []
    for position, name in enumerate(names):
        unique = name if names.count(name) == 1 else f"{name} ({names[: position + 1].count(name)})"
        labels.append(fmt.shorten(unique, _LONGEST) or f"run {position + 1}")
    return labels


def _options_apart(run: Run, twins: Sequence[Run]) -> list[str]:
    """The method's options that runs of the same title do not share."""
    each = [_options(one) for one in twins]
    own = _options(run)
    keys = [key for key in dict.fromkeys(k for one in each for k in one) if len({one.get(key) for one in each}) > 1]
    return [f"{key.rpartition('.')[2]} {own.get(key, UNKNOWN)}" for key in keys]


def _amounts_apart(run: Run, twins: Sequence[Run]) -> list[str]:
    """What runs of the same title and configuration spent, where that sets them apart."""
    at = next(position for position, other in enumerate(twins) if other is run)
    return [f"{key} {values[at]}" for key, values in unlike(twins).spent.items()]


def _options(run: Run) -> dict[str, str]:
    return {
        f"{method.get('name')}.{key}": str(value)
        for method in run.results.get("methods") or []
        for key, value in (method.get("options") or {}).items()
    }
