"""Pool runs of one recipe that differ only in their seed: one line of a table, with the mean and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everlearn import wording
from everlearn.comparison import formatting as fmt
from everlearn.comparison.intervals import over_runs
from everlearn.comparison.recipe_differences import UNKNOWN, repeats, unlike
from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import Estimate

_LONGEST, _LONGEST_OWN, _PARTS = 60, 44, 3
"""Maximum length of a label, maximum length of its part after the method's title, maximum settings named there."""


@dataclass(frozen=True)
class Pool:
    """Runs that form one line of a table, under one label: of a report, those that differ only in their seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> list[str]:
        """Return their seeds as texts."""
        return [str(run.results.get("seed")) for run in self.runs]


def pools(runs: Sequence[Run]) -> tuple[Pool, ...]:
    """Group runs that differ only in their seeds, in the order in which they first occur.

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
    """Return whether a run is a further seed of a group."""
    seeds = [other.results.get("seed") for other in group]
    alone = group[0].recipe is None or None in seeds or run.results["seed"] in seeds
    return not alone and repeats(group[0], run)


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate of a single run, or the mean of several with its interval over runs.

    The result is absent if one of the runs lacks the number.
    """
    if len(estimates) == 1:
        return estimates[0]
    values = [estimate.value for estimate in estimates if estimate.value is not None]
    return over_runs(values) if values and len(values) == len(estimates) else Estimate()


def _labels(leads: Sequence[Run]) -> list[str]:
    """Return a label for each pool: the method's title, and in what it differs from the others.

    The label names the method's options if several pools have the same title, and every setting of the configuration
    that differs between pools. If that is too long, the run's name is used in its place; all differences are in a
    table.
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
    """Return the method's options in which runs of the same title differ."""
    each = [_options(one) for one in twins]
    own = _options(run)
    keys = [key for key in dict.fromkeys(k for one in each for k in one) if len({one.get(key) for one in each}) > 1]
    return [f"{key.rpartition('.')[2]} {own.get(key, UNKNOWN)}" for key in keys]


def _amounts_apart(run: Run, twins: Sequence[Run]) -> list[str]:
    """Return the compute in which runs of the same title and configuration differ."""
    at = next(position for position, other in enumerate(twins) if other is run)
    return [f"{key} {values[at]}" for key, values in unlike(twins).spent.items()]


def _options(run: Run) -> dict[str, str]:
    return {
        f"{method.get('name')}.{key}": wording.value(value)
        for method in run.results.get("methods") or []
        for key, value in (method.get("options") or {}).items()
    }
