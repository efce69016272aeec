"""Draw what has been forgotten so far along the stream, and what general text lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.evaluation.score_table import ScoreTable
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.registry import Plate, figure


@figure("forgotten so far", data=Comparison, section="stream")
def forgotten_so_far(comparison: Comparison) -> Iterator[Plate]:
    """Draw what has been forgotten after each stage, the mean over the domains learnt before."""
    caption = "Forgotten so far, the mean over the domains learnt before; lower is better."
    yield from _along(comparison, _forgotten, caption)


@figure("general", data=Comparison, section="stream")
def general(comparison: Comparison) -> Iterator[Plate]:
    """Draw what general text lost against the base model after each stage."""
    for name in comparison.general if comparison.runs[0].domains else ():
        caption = f"{fmt.named('General text', fmt.shorten(name, 40))}: change since the base model; lower is better."
        yield from _along(comparison, partial(ScoreTable.worsening, column=name, since=0), caption)


def _forgotten(matrix: ScoreTable, row: int) -> float | None:
    losses = []
    for column in matrix.columns:
        own = matrix.own_stage(column)
        if own is not None and own < row:
            losses.append(matrix.worsening(column, own, row))
    known = [value for value in losses if value is not None]
    # With missing columns the mean would be over different domains in each stage.
    return sum(known) / len(known) if known and len(known) == len(losses) else None


def _along(comparison: Comparison, score: Callable[..., float | None], caption: str) -> Iterator[Plate]:
    metric = comparison.lead
    if metric is None:
        return
    lines, ends = [], []
    for pool, rank in comparison.ranks.items():
        stages = range(min(len(matrix.rows) for matrix in comparison.matrices(metric, pool)))
        y = [comparison.over_seeds(metric, pool, partial(score, row=stage)) for stage in stages]
        if any(value is not None for value in y):
            lines.append(Curve(rank, stages, y, label=comparison.labels[pool]))
            end = next(value for value in reversed(y) if value is not None)
            ends.append(f"{comparison.labels[pool]} {fmt.fixed(end, 3, True)}")
    if not lines:
        return
    # The stage axis has names only if each stage is the same domain in every run.
    ticks = ["base", *comparison.runs[0].domains] if comparison.same_stream else None
    unit = comparison.matrices(metric)[0].printed_unit or metric.replace("_", " ")
    numbers = "At the end: " + ", ".join(ends)
    yield from curves(
        Curves(f"{unit}, worse ↑", lines, caption, numbers, ticks, zero=True, x_label="" if ticks else "stage")
    )
