"""Turn a run's training log into curves over all its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from everlearn.comparison.runs import Run
from everlearn.evaluation.estimate import number

INSIDE = "bits_per_byte"
"""Key of lines with held-out scores."""
ASKED = "tasks"
"""Key of lines with scores of end tasks."""
_POINTS = 150
"""Approximate number of points of a curve; more would be invisible and enlarge the report."""


def steps(run: Run) -> dict[tuple[int, int], int]:
    """Return the step in the run of each stage and step in it.

    Steps start again in each stage; a log whose steps already continue across stages is left unchanged.
    """
    ends: dict[int, int] = {}
    first: dict[int, int] = {}
    keys = [(stage, step) for stage, step, _ in in_stages(run.log)]
    for stage, step in keys:
        ends[stage], first[stage] = max(step, ends.get(stage, 0)), min(step, first.get(stage, step))
    order = sorted(ends)
    through = all(first[b] > ends[a] for a, b in pairwise(order))
    offsets, total = {}, 0
    for stage in order:
        offsets[stage] = 0 if through else total
        total += ends[stage]
    return {key: offsets[key[0]] + key[1] for key in sorted(set(keys))}


def in_stages(log: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the lines of a log that have a stage and a step, after these."""
    for line in log:
        stage, step = number(line.get("stage")), number(line.get("step"))
        if stage is not None and step is not None:
            yield int(stage), int(step), line


def starts(run: Run) -> list[float]:
    """Return the step at which each stage but the first begins, where figures draw a line."""
    ends: dict[int, float] = {}
    for (stage, _), x in steps(run).items():
        ends[stage] = max(x, ends.get(stage, 0))
    return [ends[stage] + 0.5 for stage in sorted(ends)[:-1]]


def curve(run: Run, key: str) -> tuple[list[float], list[float | None]]:
    """Return a logged value over the run's steps, averaged into about `_POINTS` bins, with gaps between stages.

    If a resumed run logged a step twice, the later line is used.
    """
    place = steps(run)
    values: dict[int, dict[int, float]] = {}
    for stage, step, line in in_stages(run.log):
        if (value := number(line.get(key))) is not None:
            values.setdefault(stage, {})[place[stage, step]] = value
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
    """Scores at one step inside a stage."""

    stage: int
    step: int
    tokens: float
    """Training tokens since the start of the stream."""
    scores: Mapping[str, float]
    """Held-out set → bits per byte."""
    tasks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Metric → end task → score (`evaluation.tasks_every`)."""


def looks(run: Run) -> list[Look]:
    """Return the scores logged inside the stages, in order.

    If a resumed stage logged a step twice, the later line is used.
    """
    lines: dict[tuple[int, int], Look] = {}
    for stage, step, line in in_stages(run.log):
        tokens, text, by_task = number(line.get("tokens")), line.get(INSIDE), line.get(ASKED)
        if tokens is None or not any(isinstance(each, Mapping) for each in (text, by_task)):
            continue
        by_metric = by_task if isinstance(by_task, Mapping) else {}
        tasks = {str(metric): _numbers(scores) for metric, scores in by_metric.items()}
        lines[stage, step] = Look(stage, step, tokens, _numbers(text), tasks)
    before, scored = 0.0, []
    for stage in sorted({stage for stage, _ in lines}):
        inside = [lines[key] for key in sorted(lines) if key[0] == stage]
        scored += [replace(look, tokens=before + look.tokens) for look in inside]
        before += max(look.tokens for look in inside)
    return scored


def _numbers(values: object) -> dict[str, float]:
    listed = values.items() if isinstance(values, Mapping) else ()
    return {str(name): value for name, raw in listed if (value := number(raw)) is not None}
