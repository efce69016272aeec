"""Draw dots with whiskers: a row for each name, a dot for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import SIZE, WIDTH, Drawing, Scale, series_colour, spread, width_of
from everlearn.report.figures.registry import Plate, figure, plate

_LONGEST = 48
"""Maximum characters of a name."""


@dataclass(frozen=True)
class Dots:
    """Estimates of several runs in named rows.

    Attributes:
        unit: unit of the value axis.
        rows: names, the first on top.
        runs: for each run, in the order of ranks, its estimate in each row.
        caption: caption of the figure.
        labels: the runs' names, for a screen reader.
        zero: whether the axis reaches zero.
    """

    unit: str
    rows: Sequence[str]
    runs: Sequence[Sequence[Estimate]]
    caption: str
    labels: Sequence[str] = ()
    zero: bool = True


@figure("dots", data=Dots)
def dots(plot: Dots) -> Iterator[Plate]:
    """Draw a row for each name, a dot for each run, and a line at zero."""
    if not plot.rows or not any(e.value is not None for run in plot.runs for e in run):
        return
    names = [fmt.shorten(row, _LONGEST) for row in plot.rows]
    # Names that would take half of a phone's width are put above their rows.
    above = max(map(width_of, names)) > 0.42 * WIDTH
    left, head = (8.0, 1.4 * SIZE) if above else (max(map(width_of, names)) + 14, 0.0)
    space = max(20.0 - head / 2, 9.0 * len(plot.runs) + 6)
    step, top = space + head, 8.0
    bottom = top + 6 + step * len(names)
    drawing = Drawing(WIDTH, bottom + 3.2 * SIZE)
    ends = [end for run in plot.runs for e in run for end in (e.value, *(e.interval or ()))]
    x = Scale(*spread(ends, plot.zero), left, WIDTH - 14)
    drawing.x_axis(x, bottom, plot.unit, grid=top)
    for row, name in enumerate(names):
        y = top + step * row
        if above:
            drawing.text(0, y + SIZE, name, halo=True)
        else:
            drawing.text(left - 10, y + space / 2 + 0.35 * SIZE, name, "end")
    for series, run in enumerate(plot.runs):
        middle = top + head + space * 0.5 + (series - (len(plot.runs) - 1) / 2) * min(9.0, space / 2)
        label = f"{plot.labels[series]}, " if plot.labels else ""
        marks, lines, tooltips = [], [], []
        for row, e in enumerate(run):
            if e.interval is not None:
                low, high = e.interval
                lines.append(f"M{x(low):.1f},{middle + step * row:.1f}H{x(high):.1f}")
            if e.value is not None:
                marks.append((x(e.value), middle + step * row))
                tooltips.append(f"{label}{plot.rows[row]}: {fmt.estimate(e, fmt.decimals([e.value]))}")
        if lines:
            drawing.path("".join(lines), series_colour(series), width=1.4)
        drawing.markers(marks, series, tooltips)
    numbers = []
    for position, run in enumerate(plot.runs):
        values = ", ".join(f"{name} {fmt.fixed(e.value, 3, True)}" for name, e in zip(plot.rows, run, strict=True))
        numbers.append(f"{plot.labels[position]}: {values}." if plot.labels else f"{values}.")
    yield plate(drawing, plot.caption, " ".join(numbers))
