"""Learning against forgetting: the one picture of several runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from everlearn.evaluation.estimate import Estimate
from everlearn.report import formatting as fmt
from everlearn.report.drawing import FAINT, INK, NAMED, SIZE, Drawing, Scale, series_colour, spread, width_of
from everlearn.report.figures.registry import Plate, figure, plate

_WIDTH, _HEIGHT = 560, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 548, 32, 330
Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


@dataclass(frozen=True)
class Standing:
    """Where one run stands: what it learnt and what it forgot again."""

    label: str
    learnt: Estimate
    forgotten: Estimate
    recommended: bool = False


@dataclass(frozen=True)
class Standings:
    """All runs of a page, the best at the end first."""

    runs: tuple[Standing, ...]
    unit: str
    ranked: bool = True
    """Whether a table on the page has them in this order, so that a rank names a run."""


@figure("standing", title="Learning against forgetting", data=Standings, section="top")
def standing(found: Standings) -> Iterator[Plate]:
    """One point a run, whiskers for the intervals, the base model where nothing was learnt and nothing forgotten."""
    runs = [(rank, run) for rank, run in enumerate(found.runs) if None not in (run.learnt.value, run.forgotten.value)]
    if len(runs) < 2:
        return
    drawing = Drawing(_WIDTH, _HEIGHT)
    # The whiskers may leave the plot, the points may not: one run of two seeds must not squeeze all others.
    x = Scale(*spread((run.forgotten.value for _, run in runs), margin=0.16), _LEFT, _RIGHT)
    y = Scale(*spread((run.learnt.value for _, run in runs), margin=0.16), _BOTTOM, _TOP)
    _worse(drawing, x, y)
    unit = f" ({found.unit})" if found.unit else ""
    drawing.x_axis(x, _BOTTOM, f"forgotten by the end{unit}", grid=_TOP)
    drawing.y_axis(y, _LEFT, f"learnt{unit}", grid=_RIGHT)
    best = frontier([(run.forgotten.value or 0.0, run.learnt.value or 0.0) for _, run in runs])
    _staircase(drawing, x, y, best)
    for rank, run in runs:
        _whiskers(drawing, x, y, rank, run)
    drawing.path(f"M{x(0) - 5:.1f},{y(0) - 5:.1f}l10,10m-10,0l10,-10", INK, width=2)
    points = [Point(x(0), y(0), "base model")]
    for rank, run in sorted(runs, key=lambda each: not each[1].recommended):
        at = run.forgotten.value or 0.0, run.learnt.value or 0.0
        named = not found.ranked or len(runs) <= NAMED or run.recommended or at in best
        name = run.label if named else str(rank + 1)
        drawing.marker(x(at[0]), y(at[1]), rank, f"{rank + 1}. {run.label}")
        low, high = run.forgotten.interval or (at[0], at[0])
        ends = max(x(low), _LEFT), min(x(high), _RIGHT)
        points.append(Point(x(at[0]), y(at[1]), fmt.shorten(name, 30), run.recommended, *ends))
    names_beside(drawing, points)
    drawing.line(_RIGHT - 252, 21, _RIGHT - 264, 11, INK, 2)
    drawing.path(f"M{_RIGHT - 270},6l11,2.5l-6.5,8.5z", fill=INK)
    drawing.text(_RIGHT, 20, "better: more learnt, less forgotten", "end", bold=True)
    caption = (
        "Learning against forgetting: up is more learnt, left is less forgotten. The cross is the base model; the "
        "dashed line joins the runs that no other run beats at both; in the shaded corner more is forgotten than was "
        "learnt. Lines: 95 % intervals."
    )
    if found.ranked and len(runs) > NAMED:
        caption += " Numbers are ranks in the table below."
    numbers = "; ".join(
        f"{run.label}: learnt {fmt.fixed(run.learnt.value)}, forgotten {fmt.fixed(run.forgotten.value)}"
        for _, run in runs
    )
    yield plate(drawing, caption, f"{numbers}.")


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (forgotten, learnt) that no other point, the base model at (0, 0) included, beats at both."""
    best: list[tuple[float, float]] = []
    for forgotten, learnt in sorted({*points, (0.0, 0.0)}, key=lambda point: (point[0], -point[1])):
        if not best or learnt > best[-1][1]:
            best.append((forgotten, learnt))
    return best


def _worse(drawing: Drawing, x: Scale, y: Scale) -> None:
    """The wash where more is forgotten than was learnt: under the line learnt = forgotten."""
    steps = [x.low + (x.high - x.low) * i / 60 for i in range(61)]
    edge = "L".join(f"{x(s):.1f},{min(max(y(s), _TOP), _BOTTOM):.1f}" for s in steps)
    drawing.path(f"M{_LEFT},{_BOTTOM}L{edge}L{_RIGHT},{_BOTTOM}z", fill="rgb(var(--loss) / 0.1)")
    if y(x.high) < _BOTTOM - 3 * SIZE:
        drawing.text(_RIGHT - 8, _BOTTOM - 10, "more forgotten than learnt", "end", FAINT)


def _staircase(drawing: Drawing, x: Scale, y: Scale, best: Sequence[tuple[float, float]]) -> None:
    corners: list[tuple[float, float]] = []
    for forgotten, learnt in best:
        if corners:
            corners.append((x(forgotten), corners[-1][1]))
        corners.append((x(forgotten), y(learnt)))
    path = "L".join(f"{a:.1f},{b:.1f}" for a, b in [*corners, (_RIGHT, corners[-1][1])])
    drawing.path(f"M{path}", FAINT, width=1.2, dash="5 4")


def _whiskers(drawing: Drawing, x: Scale, y: Scale, rank: int, run: Standing) -> None:
    at, colour = (x(run.forgotten.value or 0.0), y(run.learnt.value or 0.0)), series_colour(rank)
    if run.forgotten.interval is not None:
        low, high = (min(max(x(end), _LEFT), _RIGHT) for end in run.forgotten.interval)
        drawing.line(low, at[1], high, at[1], colour, 1.3)
    if run.learnt.interval is not None:
        low, high = (min(max(y(end), _TOP), _BOTTOM) for end in run.learnt.interval)
        drawing.line(at[0], low, at[0], high, colour, 1.3)


@dataclass(frozen=True)
class Point:
    """A point that wants its name beside it, the ends of its horizontal whisker, and other points that are it too."""

    x: float
    y: float
    name: str
    bold: bool = False
    left: float | None = None
    right: float | None = None
    also: Sequence[tuple[float, float]] = ()
    """Where its name may stand as well (the rest of a line), the best first."""


def names_beside(drawing: Drawing, points: Sequence[Point]) -> list[str]:
    """Each name beside its point, on the first side where it covers no point, no whisker and no other name.

    A vertical whisker or the frontier may run through a name: it is drawn with a halo.

    Returns:
        The names that have no room anywhere; they are not drawn.
    """
    marks = [_mark(p.x, p.y) for p in points]
    marks += [(p.left, p.y - 1, p.right, p.y + 1) for p in points if p.left is not None and p.right is not None]
    rest = [_mark(x, y) for p in points for x, y in p.also]
    names: list[Box] = []
    without = []
    for point in points:
        inside = [
            box
            for box in _boxes(point)
            if box[0] >= _LEFT and box[2] <= _WIDTH - 2 and box[1] >= _TOP and box[3] <= _BOTTOM
        ]
        # A name over another line's point is better than none.
        free = (box for taken in ((*marks, *rest), marks) for box in inside if not _covers(box, (*taken, *names)))
        if (box := next(free, None)) is None:
            without.append(point.name)
            continue
        drawing.text(box[0], box[1] + 0.85 * SIZE, point.name, bold=point.bold, halo=True)
        names.append(box)
    return without


def _mark(x: float, y: float) -> Box:
    return (x - 6, y - 6, x + 6, y + 6)


def _boxes(point: Point) -> Iterator[Box]:
    """The places of a name, the best first: beside the point, above or below it; then those of its other points."""
    long, high = width_of(point.name) + 4, SIZE + 2
    for x, y in ((point.x, point.y), *point.also):
        own = (x, y) == (point.x, point.y)
        left = min((point.left if own else None) or x, x - 6) - 6
        right = max((point.right if own else None) or x, x + 6) + 6
        for corner, top in (
            (right, y - high / 2),
            (left - long, y - high / 2),
            (x + 5, y - 6 - high),
            (x - 5 - long, y - 6 - high),
            (x + 5, y + 6),
            (x - 5 - long, y + 6),
        ):
            yield (corner, top, corner + long, top + high)


def _covers(box: Box, others: Iterable[Box]) -> bool:
    return any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in others)
