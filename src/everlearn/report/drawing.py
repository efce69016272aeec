"""Draw plots as small SVG texts that take their colours and fonts from the page.

Coordinates are pixels of a view box. Colours are ``currentColor`` and CSS variables of the page, so that a figure is
readable in light mode, in dark mode and on paper. The same input gives the same bytes, and figures have no ids, so any
number of them fit on one page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from everlearn.comparison.formatting import fixed

SERIES = 6
"""Number of colours and markers; colour-blind readers can distinguish six."""
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚")
NAMED = 12
"""Above this number of runs, names are replaced by ranks."""
TOLD = 12
"""Maximum number of points that a line's title lists. With more it has the first and the last one, and the page's
script shows the others."""
INK, FAINT, RULE = "currentColor", "var(--faint)", "var(--rule)"
SIZE = 12
"""Font size in pixels of the view box."""
WIDTH = 380
"""Pixels of a figure's view box. A phone leaves 358 pixels, so its texts are 11 pixels high."""
_LARGEST = 1.25
"""Factor by which a page may enlarge a figure, so that its texts stay smaller than headings."""
_HALO = "paint-order:stroke;stroke:var(--paper);stroke-width:4px"
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
    """Return the colour of a run by its rank; ranks after the sixth are grey, as colours would be too similar."""
    return f"var(--series-{series})" if series < SERIES else FAINT


def legend_of(names: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return name, marker and rank of the first six, for the legend of a page."""
    return [(name, glyph, rank) for rank, (name, glyph) in enumerate(zip(names, GLYPHS, strict=False))]


def px(value: float) -> str:
    """Write a coordinate to a tenth of a pixel."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def width_of(text: str, size: float = SIZE) -> float:
    """Return the approximate width of a text; East Asian characters are square."""
    return sum(1.0 if ord(character) > 0x2E7F else 0.56 for character in text) * size


def ticks(low: float, high: float, count: int = 5, integer: bool = False) -> list[float]:
    """Return at most about `count` round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power of ten.

    With `integer` these are integers.
    """
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * (1 - 1e-9))
    step = max(step, 1.0) if integer else step
    values = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return values or [low]


def tick_texts(values: Sequence[float]) -> list[str]:
    """Write ticks with as many decimals as their step needs."""
    step = values[1] - values[0] if len(values) > 1 else max(abs(values[0]), 1e-9)
    places = min(9, max(0, -math.floor(math.log10(step) + 1e-9)))
    return [fixed(value, places) for value in values]


def spread(values: Iterable[float | None], zero: bool = True, margin: float = 0.06) -> tuple[float, float]:
    """Return a range that holds all values (and zero), with a margin; (0, 1) if there are none."""
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
    """Map values [low, high] to pixels [start, end]."""

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
        """Add an element unchanged; the caller has escaped its text."""
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
        values: Sequence[str] = (),
    ) -> None:
        """Add a path; `title` is its tooltip, and `values` are the tooltips of its points."""
        style = f"fill:{fill};stroke:{stroke}" + (f";stroke-width:{px(width)}" if stroke != "none" else "")
        style += (f";stroke-dasharray:{dash}" if dash else "") + (f";opacity:{opacity:g}" if opacity != 1 else "")
        end = f"><title>{escape(title)}</title></path>" if title else "/>"
        points = f' data-v="{escape("|".join(value.replace("|", "/") for value in values))}"' if values else ""
        self.add(f'<path d="{data}" style="{style}"{points}{end}')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str = RULE, width: float = 1, dash: str = ""
    ) -> None:
        """Draw a straight line."""
        self.path(f"M{px(x1)},{px(y1)}L{px(x2)},{px(y2)}", stroke, width=width, dash=dash)

    def polyline(
        self,
        points: Sequence[tuple[float, float | None]],
        stroke: str,
        width: float = 1.6,
        name: str = "",
        values: Sequence[str] = (),
    ) -> None:
        """Draw a line through all points; a point without a height interrupts it.

        Args:
            points: Points of the line.
            stroke: Colour of the line.
            width: Width of the line.
            name: Tooltip of the line.
            values: Tooltips of the points, which the page's script reads from the attribute `data-v`.
        """
        data: list[str] = []
        tooltips: list[str] = []
        pen = "M"
        for position, (x, y) in enumerate(points):
            if y is None:
                pen = "M"
                continue
            data.append(f"{pen}{px(x)},{px(y)}")
            tooltips += values[position : position + 1]
            pen = "L"
        if not data:
            return
        many = len(tooltips) > TOLD
        title = "\n".join([name, *([tooltips[0], "…", tooltips[-1]] if many else tooltips)])
        self.path("".join(data), stroke, width=width, title=title if tooltips else "", values=tooltips if many else ())

    def marker(self, x: float, y: float, series: int, title: str = "", hollow: bool = False) -> None:
        """Draw a run's marker, with shape and colour by its rank."""
        colour, shape = series_colour(series), _MARKERS[min(series, SERIES)]
        fill = "var(--paper)" if hollow else colour
        self.path(f"M{px(x)},{px(y)}{shape}", colour if hollow else "none", fill, 1.6, title=title)

    def markers(self, points: Sequence[tuple[float, float]], series: int, titles: Sequence[str] = ()) -> None:
        """Draw many markers of one run, as one element or with a tooltip each."""
        shape, colour = _MARKERS[min(series, SERIES)], series_colour(series)
        if not titles:
            data = "".join(f"M{px(x)},{px(y)}{shape}" for x, y in points)
            if data:
                # The tooltip is the one of the line below.
                self.add(f'<path d="{data}" style="fill:{colour};pointer-events:none"/>')
            return
        marks = "".join(
            f'<path d="M{px(x)},{px(y)}{shape}"><title>{escape(title)}</title></path>'
            for (x, y), title in zip(points, titles, strict=True)
        )
        self.add(f'<g style="fill:{colour}">{marks}</g>')

    def cross(self, x: float, y: float) -> None:
        """Draw the cross that marks a reference, such as the base model."""
        self.path(f"M{x - 5:.1f},{y - 5:.1f}l10,10m-10,0l10,-10", INK, width=2)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        fill: str = INK,
        turn: float = 0,
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """Draw one line of text; `anchor` is start, middle or end; a `halo` makes it readable over lines."""
        parts = (
            f"fill:{fill}" if fill != INK else "",
            f"text-anchor:{anchor}" if anchor != "start" else "",
            "font-weight:600" if bold else "",
            _HALO if halo else "",
        )
        style = f' style="{";".join(filter(None, parts))}"' if any(parts) else ""
        at = f'transform="translate({px(x)},{px(y)}) rotate({px(turn)})"' if turn else f'x="{px(x)}" y="{px(y)}"'
        self.add(f"<text {at}{style}>{escape(text)}</text>")

    def x_axis(
        self, scale: Scale, at: float, title: str = "", count: int = 5, grid: float | None = None, integer: bool = False
    ) -> None:
        """Draw round numbers below the plot, integers if `integer`; `grid` is the height that grid lines reach."""
        values = ticks(scale.low, scale.high, count, integer)
        if grid is not None:
            self._rules({value: f"M{px(scale(value))},{px(at)}V{px(grid)}" for value in values})
        for value, label in zip(values, tick_texts(values), strict=True):
            self.text(scale(value), at + 1.25 * SIZE, label, "middle")
        if title:
            self.text((scale.start + scale.end) / 2, at + 2.7 * SIZE, title, "middle")

    def y_axis(self, scale: Scale, at: float, title: str = "", count: int = 5, grid: float | None = None) -> None:
        """Draw round numbers left of the plot; the title is above the axis, so that it need not be rotated."""
        values = ticks(scale.low, scale.high, count)
        if grid is not None:
            self._rules({value: f"M{px(at)},{px(scale(value))}H{px(grid)}" for value in values})
        for value, label in zip(values, tick_texts(values), strict=True):
            self.text(at - 6, scale(value) + 0.35 * SIZE, label, "end")
        if title:
            self.text(2, scale.end - 0.9 * SIZE, title, fill=FAINT)

    def _rules(self, lines: Mapping[float, str]) -> None:
        """Draw a plot's grid lines as one element, with a stronger line at zero."""
        if others := "".join(line for value, line in lines.items() if value != 0):
            self.path(others, RULE, width=0.6)
        if 0 in lines:
            self.path(lines[0], FAINT)

    def svg(self, description: str, screen: str = "") -> str:
        """Return the complete figure.

        Args:
            description: Text for screen readers.
            screen: "wide" or "narrow" if the figure has a variant for each.
        """
        label = escape(" ".join(description.split()), quote=True)
        box = f'viewBox="0 0 {px(self.width)} {px(self.height)}"' + (f' class="{screen}"' if screen else "")
        box += f' style="max-width: {px(_LARGEST * self.width)}px"'
        return f'<svg role="img" aria-label="{label}" {box}>\n' + "\n".join(self._parts) + "\n</svg>"
