"""Draw a number along the values of one option: lines if the values are numbers, dots if they are names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import SERIES
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.dots import Dots, dots
from everlearn.report.figures.registry import Plate, figure

_DECADES = 20
"""Positive values are drawn at equal distances (learning rates, strengths) if the largest is this many times the
smallest."""


@dataclass(frozen=True)
class Swept:
    """One number of several families of runs that differ only in one option.

    Attributes:
        option: name of the option.
        unit: unit of the number.
        values: values of the option: numbers in ascending order, or names.
        families: for each family, in the order of colours, its estimate at each value; None without a run.
        labels: names of the families.
        caption: caption of the figure.
        level: level of the reference, drawn as a horizontal line.
        reference: name of the reference.
        zero: whether zero is meaningful, so that the axis must reach it.
    """

    option: str
    unit: str
    values: Sequence[float] | Sequence[str]
    families: Sequence[Sequence[Estimate | None]]
    labels: Sequence[str]
    caption: str
    level: float | None = None
    reference: str = ""
    zero: bool = True


@figure("swept", data=Swept)
def swept(plot: Swept) -> Iterator[Plate]:
    """Draw lines with bands for the intervals and the reference as a grey line; for names, dots with whiskers."""
    names = [value for value in plot.values if isinstance(value, str)]
    if names:
        runs = [[each or Estimate() for each in family] for family in plot.families]
        caption = plot.caption + fmt.marked_intervals("Lines", itertools.chain(*plot.families))
        yield from dots(Dots(plot.unit, names, runs, caption, plot.labels, plot.zero))
        return
    numbers = [float(value) for value in plot.values]
    apart = numbers[0] > 0 and numbers[-1] >= _DECADES * numbers[0]
    places = list(range(len(numbers))) if apart else numbers
    lines, caption = [], plot.caption + fmt.marked_intervals("Bands", itertools.chain(*plot.families))
    for series, (label, family) in enumerate(zip(plot.labels, plot.families, strict=True)):
        known = [(at, each) for at, each in zip(places, family, strict=True) if each is not None]
        if known:
            lines.append(Curve.of(series, [at for at, _ in known], [each for _, each in known], label))
    if plot.level is not None:
        lines.append(Curve(SERIES, [places[0], places[-1]], [plot.level, plot.level], label=plot.reference))
        caption += f" Grey: {plot.reference}, {fmt.fixed(plot.level)}."
    descriptions = []
    for label, family in zip(plot.labels, plot.families, strict=True):
        pairs = zip(numbers, family, strict=True)
        descriptions.append(
            f"{label} {', '.join(f'{at:g}: {fmt.fixed(one.value)}' for at, one in pairs if one is not None)}."
        )
    ticks = [f"{value:g}" for value in numbers] if apart else None
    yield from curves(
        Curves(plot.unit, lines, caption, " ".join(descriptions), ticks, zero=plot.zero, x_label=plot.option)
    )
