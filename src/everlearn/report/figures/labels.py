"""Place names beside the points of a plot so that none covers another name or point; others get a leader line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from everlearn.report.drawing import FAINT, SIZE, Drawing, width_of

Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""
Segment = tuple[float, float, float, float]
"""From x, y to x, y."""
_RADIUS = 6.0
"""Radius of a marker with a margin."""
_LONG = 70.0
"""Length of a whisker in pixels above which a name is not put at its end if there is another place."""
_STEP, _DIRECTIONS = 12.0, 24
"""Distance of the rings on which a name is tried, and the number of directions."""


@dataclass(frozen=True)
class Frame:
    """The size of a figure and the positions of its axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True)
class Point:
    """A point with a name.

    Attributes:
        x: position in pixels.
        y: position in pixels.
        name: the name to place.
        bold: whether the name is emphasised.
        left: left end of its horizontal whisker.
        right: right end of its horizontal whisker.
        also: other points beside which the name may be put (the rest of a line), the best first.
    """

    x: float
    y: float
    name: str
    bold: bool = False
    left: float | None = None
    right: float | None = None
    also: Sequence[tuple[float, float]] = ()


@dataclass
class _Taken:
    """What a name must not cover: points and whiskers, names, leader lines."""

    marks: list[Box] = field(default_factory=list)
    names: list[Box] = field(default_factory=list)
    leaders: list[Segment] = field(default_factory=list)


def draw_names(drawing: Drawing, points: Sequence[Point], frame: Frame) -> list[str]:
    """Draw each name beside its point, or further away with a leader line.

    A vertical whisker or the frontier may cross a name, which is drawn with a halo. The same points give the same
    places.

    Args:
        drawing: The drawing, which has the points already.
        points: The points with their names; the first are placed first.
        frame: The frame; names are placed within its axes.

    Returns:
        The names for which there is no room; they are not drawn.
    """
    taken = _Taken([_mark(p.x, p.y) for p in points])
    taken.marks += [(p.left, p.y - 1, p.right, p.y + 1) for p in points if p.left is not None and p.right is not None]
    rest = [_mark(x, y) for p in points for x, y in p.also]
    texts: list[tuple[Point, Box]] = []
    without = []
    for point in points:
        box, leader = _place(point, frame, taken, rest)
        if box is None:
            without.append(point.name)
            continue
        taken.names.append(box)
        texts.append((point, box))
        if leader is not None:
            taken.leaders.append(leader)
    for leader in taken.leaders:
        drawing.line(*leader, FAINT, 0.9)
    for point, box in texts:
        drawing.text(box[0] + 2, box[1] + 0.85 * SIZE, point.name, bold=point.bold, halo=True)
    return without


def _place(
    point: Point, frame: Frame, taken: _Taken, rest: Sequence[Box]
) -> tuple[Box, Segment | None] | tuple[None, None]:
    """Return the place of a name, and a leader line if it is not beside its point; None if there is no room."""
    beside = [box for box in _beside(point) if _inside(box, frame)]
    # Covering a point of another line is better than a place far away.
    for marks in ([*taken.marks, *rest], taken.marks):
        for box in beside:
            if not _covers(box, (*marks, *taken.names)) and not any(_meets(line, box) for line in taken.leaders):
                return box, None
    # Leader lines that cross or pass under a name are hard to follow, but better than a point without a name.
    crossing, under = None, None
    for box in _around(point, frame):
        if not _inside(box, frame) or _covers(box, taken.marks) or _covers(box, taken.names):
            continue
        if (leader := _leader(point, box)) is None:
            continue
        crosses = any(_cross(leader, other) for other in taken.leaders)
        if crosses and crossing is not None:
            continue
        if _passes_under(box, leader, taken):
            under = under or (box, leader)
        elif crosses:
            crossing = box, leader
        else:
            return box, leader
    return crossing or under or (None, None)


def _passes_under(box: Box, leader: Segment, taken: _Taken) -> bool:
    return any(_meets(leader, name) for name in taken.names) or any(_meets(one, box) for one in taken.leaders)


def _size(point: Point) -> tuple[float, float]:
    return width_of(point.name, SIZE * (1.07 if point.bold else 1)) + 4, SIZE + 2


def _beside(point: Point) -> Iterator[Box]:
    """Yield the places that need no leader line, the best first: right, left, above, below; then those of `also`."""
    long, high = _size(point)
    for x, y in ((point.x, point.y), *point.also):
        own = (x, y) == (point.x, point.y)
        left = min((point.left if own else None) or x, x - _RADIUS) - 4
        right = max((point.right if own else None) or x, x + _RADIUS) + 4
        level = [(right, y - high / 2), (left - long, y - high / 2)]
        oblique = [
            (x + 5, y - 6 - high),
            (x - 5 - long, y - 6 - high),
            (x + 5, y + 6),
            (x - 5 - long, y + 6),
        ]
        # At the end of a long whisker a name could be nearer to other points than to its own.
        for corner, top in [*oblique, *level] if right - left > _LONG else [*level, *oblique]:
            yield (corner, top, corner + long, top + high)


def _around(point: Point, frame: Frame) -> Iterator[Box]:
    """Yield places on growing rings, then all places."""
    long, high = _size(point)
    reach = math.hypot(frame.width, frame.height)
    for ring in range(1, int(reach / _STEP)):
        distance = _RADIUS + _STEP * ring
        for direction in range(_DIRECTIONS):
            # Starting on the right, alternately upwards and downwards.
            turn = math.tau * ((direction + 1) // 2) / _DIRECTIONS * (-1 if direction % 2 else 1)
            x, y = point.x + distance * math.cos(turn), point.y + distance * math.sin(turn)
            share = (1 - math.cos(turn)) / 2
            left, top = x - long * share, y - high * (1 - math.sin(turn)) / 2
            yield (left, top, left + long, top + high)
    # In a nearly full plot: everywhere, the nearest first.
    corners = [
        (left, top)
        for top in range(math.ceil(frame.top), int(frame.bottom - high) + 1, 2)
        for left in range(math.ceil(frame.left), int(frame.width - 2 - long) + 1, 8)
    ]
    for left, top in sorted(corners, key=lambda at: math.dist((at[0] + long / 2, at[1]), (point.x, point.y))):
        yield (left, top, left + long, top + high)


def _leader(point: Point, box: Box) -> Segment | None:
    """Return the leader line from the nearest edge of a place to the point; None if the place touches the point."""
    left, top, right, bottom = box
    near = min(max(point.x, left), right), min(max(point.y, top), bottom)
    gap = math.dist(near, (point.x, point.y))
    if gap <= _RADIUS:
        return None
    start = _RADIUS / gap
    return (point.x + (near[0] - point.x) * start, point.y + (near[1] - point.y) * start, *near)


def _mark(x: float, y: float) -> Box:
    return (x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS)


def _inside(box: Box, frame: Frame) -> bool:
    return box[0] >= frame.left and box[2] <= frame.width - 2 and box[1] >= frame.top and box[3] <= frame.bottom


def _covers(box: Box, others: Iterable[Box]) -> bool:
    left, top, right, bottom = box
    for low_x, low_y, high_x, high_y in others:  # not `any`, which takes twice as long for a page's names
        if left < high_x and low_x < right and top < high_y and low_y < bottom:
            return True
    return False


def _meets(line: Segment, box: Box) -> bool:
    """Return whether a line runs through the inside of a box."""
    (x1, y1, x2, y2), (left, top, right, bottom) = line, box
    if max(x1, x2) <= left or min(x1, x2) >= right or max(y1, y2) <= top or min(y1, y2) >= bottom:
        return False  # as most do
    enter, leave = 0.0, 1.0
    for start, change, low, high in ((x1, x2 - x1, left + 0.5, right - 0.5), (y1, y2 - y1, top + 0.5, bottom - 0.5)):
        if change == 0:
            if not low < start < high:
                return False
            continue
        first, last = sorted(((low - start) / change, (high - start) / change))
        enter, leave = max(enter, first), min(leave, last)
    return enter < leave


def _cross(one: Segment, other: Segment) -> bool:
    def side(a: Segment, x: float, y: float) -> float:
        return (a[2] - a[0]) * (y - a[1]) - (a[3] - a[1]) * (x - a[0])

    return side(one, *other[:2]) * side(one, *other[2:]) < 0 and side(other, *one[:2]) * side(other, *one[2:]) < 0
