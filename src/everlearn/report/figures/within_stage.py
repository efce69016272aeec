"""Draw the scores of held-out text while each domain is learnt, against training tokens (`evaluation.every`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.replicates import Pool
from everlearn.comparison.runs import Run
from everlearn.comparison.training_log import INSIDE, Look, looks
from everlearn.evaluation.estimate import number
from everlearn.report.drawing import SERIES
from everlearn.report.figures.curves import Curve, Curves, curves, in_one_scale
from everlearn.report.figures.each_domain import chosen
from everlearn.report.figures.registry import Plate, figure

_UNITS = ((1e9, "billion tokens"), (1e6, "million tokens"), (1e3, "thousand tokens"), (1.0, "tokens"))
_POINTS = 75
"""Approximate number of points of a line; more would be invisible and enlarge the page."""


@figure("within stage", data=Comparison, section="inside")
def inside(comparison: Comparison) -> Iterator[Plate]:
    """Draw a plot for each set, with a line for each run: the general text, then the domains in order."""
    every = {
        pool: [[look for look in looks(run) if look.scores] for run in comparison.pools[pool].runs]
        for pool in comparison.ranking[:SERIES]
    }
    each = {pool: looks_of_pool for pool, looks_of_pool in every.items() if any(looks_of_pool)}
    shown = [*each]
    most = max((look.tokens for looks_of_pool in each.values() for run in looks_of_pool for look in run), default=0.0)
    if not most:
        return
    scale, unit = next((scale, unit) for scale, unit in _UNITS if most >= scale or scale == 1)
    borders = {tuple(ends(run)) for looks_of_pool in each.values() for run in looks_of_pool if run}
    # Runs with different numbers of tokens per domain share no borders.
    marks = [end / scale for end in next(iter(borders))[:-1]] if len(borders) == 1 else []
    plots = []
    for name in (*comparison.general, *chosen(comparison)):
        lines = []
        for pool in shown:
            line = _line(comparison.pools[pool], each[pool], name, scale, comparison.ranks[pool])
            if line is not None:
                lines.append(replace(line, label=comparison.labels[pool]))
        if lines:
            ended = "; ".join(f"{comparison.labels[comparison.ranking[e.series]]} ends at {_last(e)}" for e in lines)
            numbers = f"bits per byte against {unit}: {ended}."
            if any(line.kept for line in lines):
                numbers += " Hollow marks: the steps whose weights were kept (`stop`)."
            plots.append(
                Curves(
                    "bits/byte", lines, name, numbers,
                    marks=marks if len(marks) <= 30 else (), markers=False, small=True, x_label=unit,
                )
            )  # fmt: skip
    for plot in in_one_scale(plots):
        yield from curves(plot)


def ends(records: Sequence[Look]) -> list[float]:
    """Return the tokens at the end of each stage."""
    return [max(look.tokens for look in records if look.stage == stage) for stage in sorted({e.stage for e in records})]


def kept_steps(run: Run) -> list[tuple[int, int]]:
    """Return (stage, step) of each domain that kept the weights of an earlier step than its last one (`stop`)."""
    return [
        (place, int(steps))
        for place, stage in enumerate(run.cost.get("stages") or [], 1)
        if (steps := number(stage.get("steps"))) and (planned := number(stage.get("planned_steps"))) and steps < planned
    ]


def _last(line: Curve) -> str:
    return fmt.fixed(next(value for value in reversed(line.y) if value is not None))


def _line(pool: Pool, each: Sequence[Sequence[Look]], name: str, scale: float, series: int) -> Curve | None:
    """Return the mean over a pool's seeds for one set, with a band from the lowest to the highest; None without scores.

    Only steps at which every seed was scored are drawn, since means over different seeds would jump.
    """
    points = [
        {(look.stage, look.step): (look.tokens, look.scores[name]) for look in run if name in look.scores}
        for run in each
    ]
    moments = sorted(set.intersection(*(set(own) for own in points)))
    if not moments:
        return None
    x: list[float] = []
    values: list[list[float] | None] = []
    base = [run.matrices[INSIDE].cell(0, name).value for run in pool.runs if INSIDE in run.matrices]
    known = [value for value in base if value is not None]
    if known and len(known) == len(each) and moments[0][0] == 1:
        x, values = [0.0], [known]
    thinned = -(-len(moments) // _POINTS)
    for place, moment in enumerate(moments):
        last = place + 1 == len(moments) or moments[place + 1][0] != moment[0]
        if place % thinned and not last:
            continue
        if place and moment[0] > moments[place - 1][0] + 1:  # a stage in which this set was not scored
            x, values = [*x, x[-1]], [*values, None]
        x.append(sum(own[moment][0] for own in points) / len(points) / scale)
        values.append([own[moment][1] for own in points])
    y = [None if own_scores is None else sum(own_scores) / len(own_scores) for own_scores in values]
    if len(each) == 1:
        own = points[0]
        kept = [(own[step][0] / scale, own[step][1]) for step in kept_steps(pool.runs[0]) if step in own]
        return Curve(series, x, y, kept=kept)
    low, high = ([None if own_scores is None else end(own_scores) for own_scores in values] for end in (min, max))
    return Curve(series, x, y, low, high)
