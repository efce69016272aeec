"""Draw distributions side by side: a row for each name, whose height shows the density."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from everlearn.comparison import formatting as fmt
from everlearn.report.drawing import INK, SIZE, WIDTH, Drawing, Scale, px, series_colour, width_of
from everlearn.report.figures.registry import Plate, figure, plate

_STEP = 34.0
_BINS = 96
_RANGE = 0.99
"""Share of the values that the axis covers."""


@dataclass(frozen=True)
class Violins:
    """Values of several names.

    Attributes:
        unit: unit of the value axis; values are 0 or more.
        rows: names, the first on top.
        values: values of each name.
        caption: caption of the figure.
    """

    unit: str
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    caption: str


@figure("violins", data=Violins)
def violins(plot: Violins) -> Iterator[Plate]:
    """Draw each row's density, with its middle half as a bar and its median as a dot."""
    if not plot.rows or not all(len(values) for values in plot.values):
        return
    values = [np.asarray(each, dtype=np.float64) for each in plot.values]
    high = max(float(np.quantile(each, _RANGE)) for each in values) or 1.0
    names = [fmt.shorten(row, 22) for row in plot.rows]
    left, top = max(map(width_of, names)) + 14, 8.0
    bottom = top + _STEP * len(names) + 6
    drawing = Drawing(WIDTH, bottom + 3.2 * SIZE)
    x = Scale(0.0, high, left, WIDTH - 14)
    drawing.x_axis(x, bottom, plot.unit, grid=top)
    descriptions = []
    for row, (name, own) in enumerate(zip(names, values, strict=True)):
        middle = top + _STEP * (row + 0.5)
        at, density = _density(own, high)
        half = 0.46 * _STEP * density / density.max()
        upper = [f"{px(x(a))},{px(middle - h)}" for a, h in zip(at, half, strict=True)]
        lower = [f"{px(x(a))},{px(middle + h)}" for a, h in zip(at, half, strict=True)]
        drawing.path(f"M{'L'.join([*upper, *reversed(lower)])}z", series_colour(0), series_colour(0), 0.8, opacity=0.45)
        low, median, upmost = (float(q) for q in np.quantile(own, (0.25, 0.5, 0.75)))
        drawing.line(x(low), middle, x(min(upmost, high)), middle, INK, 3)
        tooltip = f"{plot.rows[row]}: median {median:.3g}, middle half {low:.3g} to {upmost:.3g}"
        dot = f"M{px(x(median))},{px(middle)}m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z"
        drawing.path(dot, INK, "var(--paper)", 1.6, title=tooltip)
        drawing.text(left - 10, middle + 0.35 * SIZE, name, "end")
        descriptions.append(f"{plot.rows[row]}: median {median:.2f}, middle half {low:.2f} to {upmost:.2f}.")
    yield plate(drawing, plot.caption, " ".join(descriptions))


def _density(values: np.ndarray, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and densities: a histogram, smoothed by a kernel with the width of Silverman's rule."""
    counts, edges = np.histogram(values[values <= high], bins=_BINS, range=(0.0, high))
    spread = min(float(values.std()), float(np.subtract(*np.quantile(values, (0.75, 0.25)))) / 1.34) or high / _BINS
    width = max(0.9 * spread * len(values) ** -0.2, high / _BINS)
    middles = (edges[1:] + edges[:-1]) / 2
    kernel = np.exp(-0.5 * ((middles[:, None] - middles[None, :]) / width) ** 2)
    # The kernel is normalised within the axis, so that the density does not fall at its ends.
    smooth = (kernel / kernel.sum(0)) @ counts + 1e-12
    known = smooth > 0.004 * smooth.max()
    return middles[known], smooth[known]
