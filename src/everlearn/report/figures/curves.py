"""Draw lines along the stream, or along the steps of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from everlearn.comparison import formatting as fmt
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import FAINT, SERIES, SIZE, WIDTH, Drawing, Scale, px, series_colour, spread, width_of
from everlearn.report.figures.registry import Plate, figure, plate


@dataclass(frozen=True)
class Curve:
    """One line; the rank of its run gives colour and marker, and a missing value interrupts it."""

    series: int
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    """Ends of a band around the line; empty if there is none."""
    label: str = ""
    """Tooltip of the line."""
    kept: Sequence[tuple[float, float]] = ()
    """Points with a hollow marker: the steps whose weights were kept."""

    @classmethod
    def of(cls, series: int, x: Sequence[float], y: Sequence[Estimate], label: str) -> Curve:
        """Return the line of estimates, with their intervals as a band."""
        return cls(series, x, [e.value for e in y], [e.low for e in y], [e.high for e in y], label)


@dataclass(frozen=True)
class Curves:
    """Lines that share their axes.

    Attributes:
        unit: unit of the values, written above the axis.
        lines: the lines; ranks after the sixth are thin and grey, behind the others.
        caption: caption of the figure.
        numbers: further text for screen readers.
        ticks: names for x = 0, 1, …; None for numbers.
        marks: positions of vertical lines (a domain's own stage, the start of a stage).
        zero: draw a line at zero.
        markers: draw the points.
        small: whether it is a small multiple.
        x_label: title of the x axis.
        limits: y range, if figures share it.
        reach: x range, if figures share it.
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
    reach: tuple[float, float] | None = None


def in_one_scale(multiples: Sequence[Curves]) -> list[Curves]:
    """Return small multiples with the same x range and the same scale of differences in y."""
    if len(multiples) < 2:
        return list(multiples)
    ranges = [spread(_values(each), zero=each.zero) for each in multiples]
    height = max(high - low for low, high in ranges)
    ends = [at for each in multiples for line in each.lines for at in line.x]
    return [
        replace(each, limits=((low + high - height) / 2, (low + high + height) / 2), reach=(min(ends), max(ends)))
        for each, (low, high) in zip(multiples, ranges, strict=True)
    ]


def _values(plot: Curves) -> list[float]:
    every = [value for line in plot.lines for each in (line.y, line.low, line.high) for value in each]
    return [value for value in every if value is not None]


@figure("curves", data=Curves)
def curves(plot: Curves) -> Iterator[Plate]:
    """Draw lines with markers, an axis with names or numbers, and vertical lines at marks."""
    values = _values(plot)
    if not values:
        return
    width, height = (290, 150) if plot.small else (WIDTH, 220)
    low, high = plot.limits or spread(values, zero=plot.zero)
    left = 14 + max(width_of(fmt.fixed(end, 2)) for end in (low, high)) + SIZE
    top = 2.2 * SIZE if plot.unit else 10
    turned = plot.ticks is not None and sum(map(len, plot.ticks)) > 50
    drawing = Drawing(width, height + (70 if turned else 1.7 * SIZE) + (1.4 * SIZE if plot.x_label else 0))
    ends = plot.reach or [at for line in plot.lines for at in line.x]
    x = Scale(min(ends), max(ends) if max(ends) > min(ends) else min(ends) + 1, left + 8, width - 10)
    y = Scale(low, high, height, top)
    for mark in plot.marks:
        drawing.line(x(mark), height, x(mark), top, FAINT, 0.8, "2 3")
    drawing.y_axis(y, left, plot.unit, 4 if plot.small else 5, grid=width - 4)
    if plot.ticks is None:
        integers = all(float(at).is_integer() for line in plot.lines for at in line.x)
        drawing.x_axis(x, height, plot.x_label, 4 if plot.small else 6, integer=integers)
    else:
        _names(drawing, x, height, plot.ticks, turned)
    for line in sorted(plot.lines, key=lambda line: -line.series):
        points = [(x(at), None if value is None else y(value)) for at, value in zip(line.x, line.y, strict=True)]
        focus = line.series < SERIES
        if focus:
            _band(drawing, line, x, y)
        thickness = (1.6 if plot.markers else 1.1) if focus else 0.7
        drawing.polyline(points, series_colour(line.series), thickness, *_tooltips(plot, line))
        if plot.markers and focus and len(points) <= 30:
            drawing.markers([(at, value) for at, value in points if value is not None], line.series)
        for at, value in line.kept if focus else ():
            drawing.marker(x(at), y(value), line.series, f"{line.label} · weights kept".strip(" ·"), hollow=True)
    yield plate(drawing, plot.caption, plot.numbers)


def _tooltips(plot: Curves, line: Curve) -> tuple[str, list[str]]:
    """Return the tooltip of a line, and those of its points: position, value and interval."""
    places = min(6, fmt.decimals([value for value in line.y if value is not None]) + 1)
    ends = list(zip(line.low, line.high, strict=True)) if line.low else [(None, None)] * len(line.x)
    values = [
        f"{_at(plot, x)}: {fmt.estimate(Estimate(y, *end), places)}"
        for x, y, end in zip(line.x, line.y, ends, strict=True)
    ]
    axes = f"{plot.x_label}: {plot.unit}" if plot.x_label and plot.unit else plot.unit
    return " · ".join(filter(None, [line.label, axes])), values


def _at(plot: Curves, x: float) -> str:
    return plot.ticks[int(x)] if plot.ticks is not None and x == int(x) else f"{x:.5g}"


def _band(drawing: Drawing, line: Curve, x: Scale, y: Scale) -> None:
    """Draw a band from the lower to the upper ends, interrupted where the line is."""
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for at, low, high in zip(line.x, line.low, line.high, strict=True) if line.low else ():
        if low is None or high is None:
            pieces.append([])
        else:
            pieces[-1].append((x(at), y(low), y(high)))
    outlines = [
        "L".join(
            [f"{px(at)},{px(high)}" for at, _, high in piece] + [f"{px(at)},{px(low)}" for at, low, _ in piece[::-1]]
        )
        for piece in pieces
        if piece
    ]
    if outlines:
        drawing.path("".join(f"M{outline}z" for outline in outlines), fill=series_colour(line.series), opacity=0.2)


def _names(drawing: Drawing, x: Scale, at: float, ticks: Sequence[str], turned: bool) -> None:
    # As many names as fit, and always the last one.
    every = -(-len(ticks) // 14)
    shown = [place for place in range(len(ticks)) if place % every == 0 and place + every <= len(ticks) - 1]
    for place in [*shown, len(ticks) - 1]:
        name = fmt.shorten(ticks[place], 14)
        if turned:
            drawing.text(x(place) + 4, at + 1.2 * SIZE, name, "end", turn=-40)
        else:
            # At the edge a name ends with the figure.
            over = x(place) + width_of(name) / 2 > drawing.width
            drawing.text(drawing.width if over else x(place), at + 1.3 * SIZE, name, "end" if over else "middle")
