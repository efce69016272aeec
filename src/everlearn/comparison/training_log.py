"""A run's training log as curves over all its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import number

INSIDE = "bits_per_byte"
"""The key of lines with held-out scores."""
ASKED = "tasks"
"""The key of lines with scores of end tasks."""
_POINTS = 150
"""Points of a curve: more is neither seen nor worth the page's size."""


def steps(run: Run) -> dict[tuple[int, int], int]:
    """(stage, step in the stage) → step in the run.

    Steps start again at each stage; a log whose steps already count through is left as it is.
    """
    ends: dict[int, int] = {}
    first: dict[int, int] = {}
    keys = [(int(stage), int(step)) for stage, step in _positions(run)]
    for stage, step in keys:
        ends[stage], first[stage] = max(step, ends.get(stage, 0)), min(step, first.get(stage, step))
    order = sorted(ends)
    through = all(first[b] > ends[a] for a, b in pairwise(order))
    offsets, total = {}, 0
    for stage in order:
        offsets[stage] = 0 if through else total
        total += ends[stage]
    return {key: offsets[key[0]] + key[1] for key in sorted(set(keys))}


def _positions(run: Run) -> list[tuple[float, float]]:
    found = [(number(line.get("stage")), number(line.get("step"))) for line in run.log]
    return [(stage, step) for stage, step in found if stage is not None and step is not None]


def starts(run: Run) -> list[float]:
    """The last step before each stage but the first: where the page rules a line."""
    ends: dict[int, float] = {}
    for (stage, _), x in steps(run).items():
        ends[stage] = max(x, ends.get(stage, 0))
    return [ends[stage] + 0.5 for stage in sorted(ends)[:-1]]


def curve(run: Run, key: str) -> tuple[list[float], list[float | None]]:
    """A logged value over the run's steps, averaged into at most about `_POINTS` bins, interrupted between stages.

    A resumed run may log a step twice: the later line is the one that counts.
    """
    place = steps(run)
    values: dict[int, dict[int, float]] = {}
    for line in run.log:
        stage, step, value = number(line.get("stage")), number(line.get("step")), number(line.get(key))
        if stage is not None and step is not None and value is not None:
            values.setdefault(int(stage), {})[place[int(stage), int(step)]] = value
    width = -(-sum(map(len, values.values())) // _POINTS) or 1
    x: list[float] = []
    y: list[float | None] = []
    for stage in sorted(values):
        points = sorted(values[stage].items())
        if x:
            x.append(x[-1])
            y.append(None)
        for start in range(0, len(points), width):
            group = points[start : start + width]
            x.append(sum(p for p, _ in group) / len(group))
            y.append(sum(v for _, v in group) / len(group))
    return x, y


@dataclass(frozen=True)
class Look:
    """Held-out text, scored inside a stage."""

    stage: int
    step: int
    tokens: float
    """Trained on since the start of the stream."""
    scores: Mapping[str, float]
    """Set → bits per byte."""
    tasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Metric → end task → score (`evaluation.tasks_every`)."""


def looks(run: Run) -> list[Look]:
    """What was logged inside the stages, in the order of training; a line that a resumed stage wrote again counts."""
    lines: dict[tuple[int, int], Look] = {}
    for line in run.log:
        stage, step, tokens = (number(line.get(key)) for key in ("stage", "step", "tokens"))
        found, asked = line.get(INSIDE), line.get(ASKED)
        if stage is None or step is None or tokens is None or not any(isinstance(e, Mapping) for e in (found, asked)):
            continue
        by_metric = asked if isinstance(asked, Mapping) else {}
        tasks = {str(metric): _numbers(scores) for metric, scores in by_metric.items()}
        lines[int(stage), int(step)] = Look(int(stage), int(step), tokens, _numbers(found), tasks)
    before, made = 0.0, []
    for stage in sorted({stage for stage, _ in lines}):
        inside = [lines[key] for key in sorted(lines) if key[0] == stage]
        made += [replace(look, tokens=before + look.tokens) for look in inside]
        before += max(look.tokens for look in inside)
    return made


def _numbers(found: object) -> dict[str, float]:
    listed = found.items() if isinstance(found, Mapping) else ()
    return {str(name): value for name, raw in listed if (value := number(raw)) is not None}
