"""Draw the shares of plain training's learning and forgetting by strength: a line for each method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.report.drawing import FAINT, WIDTH, Drawing, Scale, series_colour, spread
from everlearn.report.figures.labels import Frame, Point, draw_names
from everlearn.report.figures.registry import Plate, figure, plate

_WIDE = Frame(560, 400, left=56, right=548, top=32, bottom=350)
_NARROW = Frame(WIDTH, 440, left=42, right=WIDTH - 6, top=32, bottom=396)
_BEYOND = 1.4
"""Points beyond this share of plain training's are not drawn, so that a failed run does not squeeze the others."""


@dataclass(frozen=True)
class Strength:
    """A method at one value of its option.

    Attributes:
        value: value of the option, as shown.
        kept: learnt, as a share of what plain training learns.
        left: forgotten (or drifted), as a share of what plain training forgets.
    """

    value: str
    kept: float
    left: float


@dataclass(frozen=True)
class Frontiers:
    """Methods with their points by strength.

    Attributes:
        lines: title of each method, and its points in ascending order of the option.
        lost: name of the horizontal axis.
        option: name of the option that changes along each line.
    """

    lines: Sequence[tuple[str, Sequence[Strength]]]
    lost: str
    option: str = "strength"


@figure("frontiers", data=Frontiers)
def frontiers(plot: Frontiers) -> Iterator[Plate]:
    """Draw a line for each method through its strengths; plain training is the point (1, 1)."""
    lines = [(name, [p for p in points if p.left <= _BEYOND and p.kept >= -_BEYOND]) for name, points in plot.lines]
    lines = [(name, points) for name, points in lines if points]
    if not lines:
        return
    drawn = [_drawn(plot, lines, frame) for frame in (_WIDE, _NARROW)]
    (drawing, nameless), (narrow, nameless_there) = drawn
    nameless += [name for name in nameless_there if name not in nameless]
    caption = (
        f"Up is more of plain training's learning kept, left is less of its {plot.lost}; each line is a method along "
        f"its {plot.option}, the cross plain training."
    )
    hidden = sum(len(strengths) for _, strengths in plot.lines) - sum(len(points) for _, points in lines)
    if hidden:
        caption += f" Far outside and left out: {hidden}."
    if nameless:
        caption += f" No room for the name of: {', '.join(nameless)}."
    numbers = "; ".join(
        f"{name} {', '.join(f'{p.value}: {_percent(p.kept)} kept, {_percent(p.left)} left' for p in strengths)}"
        for name, strengths in lines
    )
    yield plate(drawing, caption, f"{numbers}.", narrow)


def _drawn(plot: Frontiers, lines: Sequence[tuple[str, Sequence[Strength]]], frame: Frame) -> tuple[Drawing, list[str]]:
    """Draw the figure in a frame, and return it with the names for which there was no room."""
    drawing = Drawing(frame.width, frame.height)
    every = [point for _, points in lines for point in points]
    x = Scale(*spread((100 * value for value in (1.0, *(p.left for p in every))), margin=0.08), frame.left, frame.right)
    y = Scale(*spread((100 * value for value in (1.0, *(p.kept for p in every))), margin=0.08), frame.bottom, frame.top)
    drawing.x_axis(x, frame.bottom, f"{plot.lost}, % of plain training's", grid=frame.top)
    drawing.y_axis(y, frame.left, "learning kept, % of plain training's", grid=frame.right)
    drawing.line(x(100), frame.bottom, x(100), frame.top, FAINT, dash="3 4")
    drawing.line(frame.left, y(100), frame.right, y(100), FAINT, dash="3 4")
    points = []
    for series, (name, strengths) in enumerate(lines):
        places = [(x(100 * p.left), y(100 * p.kept)) for p in strengths]
        drawing.polyline(places, series_colour(series))
        for place, strength in zip(places, strengths, strict=True):
            tooltip = f"{name}, {plot.option} {strength.value}\n{_percent(strength.kept)} of the learning kept, "
            drawing.marker(*place, series, f"{tooltip}{_percent(strength.left)} {plot.lost}")
        first, *others = sorted(places)
        points.append(Point(*first, name, also=others))
    drawing.cross(x(100), y(100))
    return drawing, draw_names(drawing, [Point(x(100), y(100), "plain training", bold=True), *points], frame)


def _percent(share: float) -> str:
    return f"{fmt.fixed(100 * share, 0)} %"
