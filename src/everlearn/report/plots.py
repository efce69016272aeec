"""Figures as SVG text that takes its colours and fonts from the page around it.

matplotlib lays the figure out; its colours are stand-ins that are replaced by ``currentColor`` and CSS variables, so
that one figure is readable in light and in dark. The same input gives the same bytes: ids are salted with the
figure's name and no date is written.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from everlearn.report.formatting import shorten
from everlearn.report.runs import Estimate

_INK, _FAINT, _RULE = "#010101", "#010102", "#010103"
_STAND_INS = {_INK: "currentColor", _FAINT: "var(--faint)", _RULE: "var(--rule)"}
SERIES = 6
"""Colours and markers before they repeat; six is what stays apart for colour-blind readers."""
MARKERS = ("o", "s", "^", "D", "v", "P")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚")
_COLOURS = [f"#0102{number:02x}" for number in range(SERIES)]
_STAND_INS |= {colour: f"var(--series-{number})" for number, colour in enumerate(_COLOURS)}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9.5,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": _FAINT,
    "axes.unicode_minus": True,
    "text.color": _INK,
    "xtick.color": _RULE,
    "xtick.labelcolor": _INK,
    "ytick.color": _RULE,
    "ytick.labelcolor": _INK,
    "grid.color": _RULE,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


@dataclass(frozen=True)
class Figure:
    """A finished figure: its SVG, ready to be put into a page."""

    svg: str


@dataclass(frozen=True)
class Series:
    """One line: where it belongs (a run's number gives colour and marker), and its points."""

    colour: int
    x: Sequence[float]
    y: Sequence[float | None]


@contextmanager
def _canvas(name: str, width: float, height: float) -> Iterator[tuple[Axes, list[Figure]]]:
    # rc_context, because a user's own matplotlibrc must not change the page.
    finished: list[Figure] = []
    with matplotlib.rc_context(), warnings.catch_warnings():
        # The browser draws the text with its own fonts: a glyph that matplotlib's font lacks is not missing there.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        for key, value in _STYLE.items():
            matplotlib.rcParams[key] = value
        matplotlib.rcParams["svg.hashsalt"] = name
        canvas = Canvas(figsize=(width, height), layout="constrained")
        canvas.patch.set_alpha(0)
        axes = canvas.add_subplot()
        axes.patch.set_alpha(0)
        yield axes, finished
        stream = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(
            stream, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
        finished.append(Figure(_adopt(stream.getvalue(), name)))


def _adopt(svg: str, name: str) -> str:
    """Make matplotlib's file a part of a page: its colours, its fonts, ids of its own, no fixed size."""
    head, body = svg[svg.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="([^"]*)"', head)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.DOTALL)
    # Tags only: a domain may be called "#010101" or contain id="…".
    body = re.sub(r"<[^>]*>", lambda tag: _adopt_tag(tag.group(), name), body)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box.group(1) if box else ""}">{body.strip()}'


def _adopt_tag(tag: str, name: str) -> str:
    tag = re.sub(r'\sid="(?:figure|patch|axes|matplotlib\.axis|xtick|ytick|text|line2d|LineCollection)_\d+"', "", tag)
    tag = re.sub(r'\sid="', f' id="{name}-', tag)
    tag = re.sub(r"url\(#", f"url(#{name}-", tag)
    tag = re.sub(r'\s(?:xlink:)?href="#', f' href="#{name}-', tag)
    tag = re.sub(r"font: (?:[a-z]+ )?([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    tag = re.sub(r"font-family: [^;\"]*;?", "", tag)
    for colour, replacement in _STAND_INS.items():
        tag = tag.replace(colour, replacement)
    return tag


def labelled(figure: Figure, description: str) -> str:
    """The SVG with what a screen reader says in its place."""
    return figure.svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description, quote=True)}" ', 1)


def dot_whisker(name: str, unit: str, rows: Sequence[str], runs: Sequence[Sequence[Estimate]]) -> Figure:
    """One row a domain, one dot a run, whiskers for the interval, a line at zero.

    Args:
        name: Salts the ids; one name a figure of the page.
        unit: Title of the value axis.
        rows: Row names, first on top.
        runs: For each run its estimate in each row.
    """
    step = min(0.2, 0.7 / max(len(runs), 1))
    height = 0.65 + len(rows) * max(0.3, 0.11 * len(runs) + 0.12)
    with _canvas(name, 4.4, height) as (axes, finished):
        axes.axvline(0, color=_FAINT, linewidth=0.8)
        for run, estimates in enumerate(runs):
            shift = (run - (len(runs) - 1) / 2) * step
            colour, marker = _COLOURS[run % SERIES], MARKERS[run % SERIES]
            for row, estimate in enumerate(estimates):
                if estimate.interval is not None:
                    axes.plot(estimate.interval, [row + shift] * 2, color=colour, linewidth=1.4, solid_capstyle="butt")
                if estimate.value is not None:
                    axes.plot([estimate.value], [row + shift], marker, color=colour)
        axes.set_yticks(range(len(rows)), [shorten(row, 22) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.set_xlabel(unit)
        axes.spines["left"].set_visible(False)
    return finished[0]


def lines(
    name: str,
    unit: str,
    series: Sequence[Series],
    *,
    ticks: Sequence[str] | None = None,
    marks: Sequence[float] = (),
    zero: bool = False,
    markers: bool = True,
    small: bool = False,
    x_label: str = "",
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Lines along the stream or along the steps.

    Args:
        name: Salts the ids; one name a figure of the page.
        unit: What the values are, written over the axis.
        series: The lines; a missing value interrupts its line.
        ticks: Names for x = 0, 1, …; numbers when None.
        marks: Where a vertical rule stands (a domain's own stage, a stage's start).
        zero: Draw a line at zero.
        markers: Draw the points.
        small: A small multiple rather than a figure of its own.
        x_label: Title of the x axis.
        limits: The y range, to share one between figures.
    """
    with _canvas(name, *((2.9, 1.9) if small else (4.4, 2.7))) as (axes, finished):
        for mark in marks:
            axes.axvline(mark, color=_FAINT, linewidth=0.8, linestyle=(0, (2, 2)))
        if zero:
            axes.axhline(0, color=_FAINT, linewidth=0.8)
        for line in series:
            y = [float("nan") if value is None else value for value in line.y]
            marker = MARKERS[line.colour % SERIES] if markers else ""
            axes.plot(line.x, y, color=_COLOURS[line.colour % SERIES], marker=marker, linewidth=1.6 if markers else 1)
        if ticks is not None:
            long = sum(map(len, ticks)) > 45
            names = [shorten(tick, 14) for tick in ticks]
            turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if long else {}
            axes.set_xticks(range(len(ticks)), names, **turned)  # type: ignore[arg-type]
        else:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if limits is not None:
            axes.set_ylim(*limits)
        axes.yaxis.set_major_locator(MaxNLocator(4 if small else 6))
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_title(unit)
        axes.set_xlabel(x_label)
    return finished[0]
