"""Plots as small SVG texts that take their colours and fonts from the page around them.

Nothing here knows what it draws. Coordinates are pixels of a view box; colours are ``currentColor`` and the page's CSS
variables, so that one figure is readable in light, in dark and on paper. The same input gives the same bytes, and a
figure has no ids, so that any number of them fit on one page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from everlearn.report.formatting import fixed

SERIES = 6
"""Colours and markers that there are; six is what stays apart for colour-blind readers."""
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚")
NAMED = 12
"""More runs than this are named by their rank."""
INK, FAINT, RULE = "currentColor", "var(--faint)", "var(--rule)"
SIZE = 12
"""Font size in pixels of the view box."""
_HALO = ";paint-order:stroke;stroke:var(--paper);stroke-width:4px"
_MARKERS = (
    "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "m-3.5,-3.5h7v7h-7z",
    "m0,-4.6l4.4,7.8h-8.8z",
    "m0,-5l4.6,5l-4.6,5l-4.6,-5z",
    "m0,4.6l4.4,-7.8h-8.8z",
    "m-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "m-2.5,0a2.5,2.5 0 1,0 5,0a2.5,2.5 0 1,0 -5,0z",
)


def series_colour(series: int) -> str:
    """The colour of a run by its rank; those after the first six are grey, since no colour would tell them apart."""
    return f"var(--series-{series})" if series < SERIES else FAINT


def legend_of(names: Iterable[str]) -> list[tuple[str, str, int]]:
    """Name, marker and rank of the first six: what a page's line of colours says."""
    return [(name, glyph, rank) for rank, (name, glyph) in enumerate(zip(names, GLYPHS, strict=False))]


def px(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def width_of(text: str, size: float = SIZE) -> float:
    """About how wide a text is; East Asian characters are square."""
    return sum(1.0 if ord(character) > 0x2E7F else 0.56 for character in text) * size


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, at most about `count`, steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * (1 - 1e-9))
    found = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return found or [low]


def tick_texts(values: Sequence[float]) -> list[str]:
    """Ticks with as many decimals as their step needs."""
    step = values[1] - values[0] if len(values) > 1 else max(abs(values[0]), 1e-9)
    places = min(9, max(0, -math.floor(math.log10(step) + 1e-9)))
    return [fixed(value, places) for value in values]


def spread(values: Iterable[float | None], zero: bool = True, margin: float = 0.06) -> tuple[float, float]:
    """A range that holds all values (and zero), with a margin; (0, 1) without any."""
    known = [value for value in values if value is not None]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    extra = margin * (high - low) or 0.05 * abs(high) or 1.0
    return low - extra * (low < 0 or not zero), high + extra * (high > 0 or not zero)


@dataclass(frozen=True)
class Scale:
    """From values [low, high] to pixels [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


class Drawing:
    """SVG elements in the order in which they are painted."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def add(self, element: str) -> None:
        """An element as it is; the caller has escaped what is text."""
        self._parts.append(element)

    def path(
        self,
        data: str,
        stroke: str = "none",
        fill: str = "none",
        width: float = 1.0,
        dash: str = "",
        opacity: float = 1.0,
        title: str = "",
    ) -> None:
        """A path; `title` is what a pointer that rests on it is told."""
        style = f"fill:{fill};stroke:{stroke}" + (f";stroke-width:{px(width)}" if stroke != "none" else "")
        style += (f";stroke-dasharray:{dash}" if dash else "") + (f";opacity:{opacity:g}" if opacity != 1 else "")
        end = f"><title>{escape(title)}</title></path>" if title else "/>"
        self.add(f'<path d="{data}" style="{style}"{end}')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = RULE, width: float = 1, dash: str = ""
    ) -> None:
        """A straight line."""
        self.path(f"M{px(x1)},{px(y1)}L{px(x2)},{px(y2)}", stroke, width=width, dash=dash)

    def polyline(
        self, points: Iterable[tuple[float, float | None]], stroke: str, width: float = 1.6, opacity: float = 1.0
    ) -> None:
        """Through all points; one without a height interrupts it."""
        data, pen = [], "M"
        for x, y in points:
            if y is None:
                pen = "M"
                continue
            data.append(f"{pen}{px(x)},{px(y)}")
            pen = "L"
        if data:
            self.path("".join(data), stroke, width=width, opacity=opacity)

    def marker(self, x: float, y: float, series: int, title: str = "", hollow: bool = False) -> None:
        """A run's mark: shape and colour by its rank."""
        colour, shape = series_colour(series), _MARKERS[min(series, SERIES)]
        fill = "var(--paper)" if hollow else colour
        self.path(f"M{px(x)},{px(y)}{shape}", colour if hollow else "none", fill, 1.6, title=title)

    def markers(self, points: Iterable[tuple[float, float]], series: int) -> None:
        """Many marks of one run as one element."""
        data = "".join(f"M{px(x)},{px(y)}{_MARKERS[min(series, SERIES)]}" for x, y in points)
        if data:
            self.path(data, fill=series_colour(series))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        fill: str = INK,
        size: float = SIZE,
        turn: float = 0,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """One line of text; `anchor` start, middle or end; with a `halo` it can be read over lines."""
        style = f"fill:{fill};font-size:{px(size)}px" + (f";text-anchor:{anchor}" if anchor != "start" else "")
        style += (";font-weight:600" if bold else "") + (_HALO if halo else "")
        at = f'transform="translate({px(x)},{px(y)}) rotate({px(turn)})"' if turn else f'x="{px(x)}" y="{px(y)}"'
        self.add(f'<text {at} style="{style}">{escape(text)}</text>')

    def x_axis(self, scale: Scale, at: float, title: str = "", count: int = 5, grid: float | None = None) -> None:
        """Round numbers under the plot; `grid` is how high their rules reach."""
        values = ticks(scale.low, scale.high, count)
        for value, label in zip(values, tick_texts(values), strict=True):
            if grid is not None:
                self.line(scale(value), at, scale(value), grid, FAINT if value == 0 else RULE, 1 if value == 0 else 0.6)
            self.text(scale(value), at + 1.25 * SIZE, label, "middle")
        if title:
            self.text((scale.start + scale.end) / 2, at + 2.7 * SIZE, title, "middle")

    def y_axis(self, scale: Scale, at: float, title: str = "", count: int = 5, grid: float | None = None) -> None:
        """Round numbers left of the plot; its title stands above, so that nobody has to turn the head."""
        values = ticks(scale.low, scale.high, count)
        for value, label in zip(values, tick_texts(values), strict=True):
            if grid is not None:
                self.line(at, scale(value), grid, scale(value), FAINT if value == 0 else RULE, 1 if value == 0 else 0.6)
            self.text(at - 6, scale(value) + 0.35 * SIZE, label, "end")
        if title:
            self.text(2, scale.end - 0.9 * SIZE, title, fill=FAINT)

    def svg(self, description: str) -> str:
        """The whole figure; `description` is what a screen reader says in its place."""
        said = escape(" ".join(description.split()), quote=True)
        box = f"0 0 {px(self.width)} {px(self.height)}"
        return f'<svg role="img" aria-label="{said}" viewBox="{box}">\n' + "\n".join(self._parts) + "\n</svg>"
