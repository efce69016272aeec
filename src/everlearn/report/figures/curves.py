"""Lines: along the stream, or along the steps of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everlearn.report import formatting as fmt
from everlearn.report.drawing import FAINT, SERIES, SIZE, Drawing, Scale, series_colour, spread, width_of
from everlearn.report.figures.registry import Plate, figure, plate


@dataclass(frozen=True)
class Curve:
    """One line: the rank of its run gives colour and marker; a missing value interrupts it."""

    series: int
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True)
class Curves:
    """Lines that share their axes.

    Attributes:
        unit: of the values, written over the axis.
        lines: what is drawn; ranks after the sixth are thin and grey, behind the others.
        caption: what is seen.
        numbers: what a screen reader is told beside.
        ticks: names for x = 0, 1, …; numbers when None.
        marks: where a vertical rule stands (a domain's own stage, a stage's start).
        zero: draw a line at zero.
        markers: draw the points.
        small: a small multiple rather than a figure of its own.
        x_label: title of the x axis.
        limits: the y range, to share one between figures.
    """

    unit: str
    lines: Sequence[Curve]
    caption: str
    numbers: str = ""
    ticks: Sequence[str] | None = None
    marks: Sequence[float] = ()
    zero: bool = False
    markers: bool = True
    small: bool = False
    x_label: str = ""
    limits: tuple[float, float] | None = None


@figure("curves", title="Lines", data=Curves)
def curves(found: Curves) -> Iterator[Plate]:
    """Lines with markers, an axis with names or numbers, and rules where something begins."""
    values = [value for line in found.lines for value in line.y if value is not None]
    if not values:
        return
    width, height = (290, 150) if found.small else (440, 230)
    low, high = found.limits or spread(values, zero=found.zero)
    left = 14 + max(width_of(fmt.fixed(end, 2)) for end in (low, high)) + SIZE
    top = 2.2 * SIZE if found.unit else 10
    turned = found.ticks is not None and sum(map(len, found.ticks)) > 50
    drawing = Drawing(width, height + (70 if turned else 1.7 * SIZE) + (1.4 * SIZE if found.x_label else 0))
    ends = [end for line in found.lines for end in (line.x[0], line.x[-1])]
    x = Scale(min(ends), max(ends) if max(ends) > min(ends) else min(ends) + 1, left + 8, width - 10)
    y = Scale(low, high, height, top)
    for mark in found.marks:
        drawing.line(x(mark), height, x(mark), top, FAINT, 0.8, "2 3")
    drawing.y_axis(y, left, found.unit, 4 if found.small else 5, grid=width - 4)
    if found.ticks is None:
        drawing.x_axis(x, height, found.x_label, 4 if found.small else 6)
    else:
        _names(drawing, x, height, found.ticks, turned)
    for line in sorted(found.lines, key=lambda line: -line.series):
        points = [(x(at), None if value is None else y(value)) for at, value in zip(line.x, line.y, strict=True)]
        focus = line.series < SERIES
        drawing.polyline(points, series_colour(line.series), (1.6 if found.markers else 1.1) if focus else 0.7)
        if found.markers and focus and len(points) <= 30:
            drawing.markers([(at, value) for at, value in points if value is not None], line.series)
    yield plate(drawing, found.caption, found.numbers)


def _names(drawing: Drawing, x: Scale, at: float, ticks: Sequence[str], turned: bool) -> None:
    # As many names as fit beside each other; the last one always.
    every = -(-len(ticks) // 14)
    shown = [place for place in range(len(ticks)) if place % every == 0 and place + every <= len(ticks) - 1]
    for place in [*shown, len(ticks) - 1]:
        name = fmt.shorten(ticks[place], 14)
        if turned:
            drawing.text(x(place) + 4, at + 1.2 * SIZE, name, "end", turn=-40)
        else:
            drawing.text(x(place), at + 1.3 * SIZE, name, "middle")
