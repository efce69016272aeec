"""Runs of one recipe that differ in their seed only are one line of a table: their mean, and how far seeds move it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

from everlearn.evaluation.estimate import Estimate
from everlearn.report import formatting as fmt
from everlearn.report.recipes import UNSET, settings
from everlearn.report.runs import Run

_LONGEST = 60


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
    """Runs with the same methods, options and settings together, in the order in which they first come.

    Runs without a recipe, and two runs with the same seed, stay apart: nothing says that they repeat each other.
    """
    groups: dict[tuple[object, ...], list[Run]] = {}
    for position, run in enumerate(runs):
        key: tuple[object, ...] = (position,)
        if run.recipe and run.results.get("seed") is not None:
            key = (repr(run.results.get("methods")), *sorted(settings(run).items()), *run.domains, *run.general)
            if any(run.results["seed"] == other.results["seed"] for other in groups.get(key, ())):
                key = (position,)
        groups.setdefault(key, []).append(run)
    members = list(groups.values())
    return tuple(Pool(label, tuple(runs)) for label, runs in zip(_labels(members), members, strict=True))


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """One run's estimate as it is; of several the mean with a 95 % interval over runs, from Student's t.

    Two seeds say little about a third one, and the interval says so (n − 1 degrees of freedom).
    """
    if len(estimates) == 1:
        return estimates[0]
    values = [estimate.value for estimate in estimates if estimate.value is not None]
    if len(values) < len(estimates) or not values:
        return Estimate()
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = float(student.ppf(0.975, len(values) - 1)) * deviation / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    # A method's title says most; where several have it they add what they do not share, their names or a number.
    titles = [runs[0].title for runs in groups]
    names = []
    for title, runs in zip(titles, groups, strict=True):
        twins = [other[0] for other, name in zip(groups, titles, strict=True) if name == title]
        names.append(title if len(twins) == 1 else f"{title} · {_own(runs[0], twins) or runs[0].name}")
    names = [
        name if names.count(name) == 1 else f"{title} · {runs[0].name}"
        for name, title, runs in zip(names, titles, groups, strict=True)
    ]
    labels = []
    for position, name in enumerate(names):
        unique = name if names.count(name) == 1 else f"{name} ({names[: position + 1].count(name)})"
        labels.append(fmt.shorten(unique, _LONGEST) or f"run {position + 1}")
    return labels


def _own(run: Run, twins: Sequence[Run]) -> str:
    """The options and settings that set a run apart from others of the same title; nothing when they are many."""
    each = [_options(one) | settings(one) for one in twins]
    mine = _options(run) | settings(run)
    keys = [key for key in dict.fromkeys(k for one in each for k in one) if len({one.get(key) for one in each}) > 1]
    said = ", ".join(f"{key.rpartition('.')[2]} {mine.get(key, UNSET)}" for key in keys)
    return said if 0 < len(keys) <= 3 and len(said) <= 40 else ""


def _options(run: Run) -> dict[str, str]:
    return {
        f"{method.get('name')}.{key}": str(value)
        for method in run.results.get("methods") or []
        for key, value in (method.get("options") or {}).items()
    }
