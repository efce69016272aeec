"""Draw learning against forgetting: the main figure of several runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import FAINT, INK, NAMED, SIZE, WIDTH, Drawing, Scale, series_colour, spread
from everlearn.report.figures.labels import Frame, Point, draw_names
from everlearn.report.figures.registry import Plate, figure, plate

WIDE = Frame(560, 380, left=56, right=548, top=32, bottom=330)
NARROW = Frame(WIDTH, 420, left=42, right=WIDTH - 6, top=48, bottom=376)
"""For a phone: taller than wide, so that there is room for names."""


@dataclass(frozen=True)
class TradeoffPoint:
    """The position of one run: what it learnt and what it forgot again."""

    label: str
    learnt: Estimate
    forgotten: Estimate
    recommended: bool = False


@dataclass(frozen=True)
class Tradeoff:
    """All runs of a page, the best at the end first."""

    runs: tuple[TradeoffPoint, ...]
    unit: str
    ranked: bool = True
    """Whether a table on the page has the same order, so that a rank can stand for a run."""


@figure("tradeoff", data=Tradeoff, section="top")
def tradeoff(plot: Tradeoff) -> Iterator[Plate]:
    """Draw a point for each run with whiskers for the intervals, and the base model at the origin."""
    runs = [(rank, run) for rank, run in enumerate(plot.runs) if None not in (run.learnt.value, run.forgotten.value)]
    if len(runs) < 2:
        return
    caption = (
        "Learning against forgetting: up is more learnt, left is less forgotten. The cross is the base model; the "
        "dashed line joins the runs that no other run beats at both; in the shaded corner more is forgotten than was "
        "learnt."
    )
    if any(run.learnt.interval or run.forgotten.interval for _, run in runs):
        caption += " Lines: 95 % intervals."
    if plot.ranked and len(runs) > NAMED:
        caption += " Numbers are ranks in the table below."
    numbers = "; ".join(
        f"{run.label}: learnt {fmt.estimate(run.learnt)}, forgotten {fmt.estimate(run.forgotten)}" for _, run in runs
    )
    yield plate(_drawn(plot, runs, WIDE, 34), caption, f"{numbers}.", _drawn(plot, runs, NARROW, 26))


def _drawn(plot: Tradeoff, runs: Sequence[tuple[int, TradeoffPoint]], frame: Frame, longest: int) -> Drawing:
    """Draw the figure in a frame, with names of at most `longest` characters."""
    drawing = Drawing(frame.width, frame.height)
    # Whiskers may leave the plot, points may not: the wide interval of one run must not squeeze all others.
    x = Scale(*spread((run.forgotten.value for _, run in runs), margin=0.16), frame.left, frame.right)
    y = Scale(*spread((run.learnt.value for _, run in runs), margin=0.16), frame.bottom, frame.top)
    _worse(drawing, x, y, frame)
    unit = f" ({plot.unit})" if plot.unit else ""
    drawing.x_axis(x, frame.bottom, f"forgotten by the end{unit}", grid=frame.top)
    drawing.y_axis(y, frame.left, f"learnt{unit}", grid=frame.right)
    best = frontier([(run.forgotten.value or 0.0, run.learnt.value or 0.0) for _, run in runs])
    _staircase(drawing, x, y, best, frame)
    for rank, run in runs:
        _whiskers(drawing, x, y, rank, run, frame)
    drawing.cross(x(0), y(0))
    points = [Point(x(0), y(0), "base model")]
    for rank, run in sorted(runs, key=lambda each: not each[1].recommended):
        at = run.forgotten.value or 0.0, run.learnt.value or 0.0
        named = not plot.ranked or len(runs) <= NAMED or run.recommended or at in best
        name = run.label if named else str(rank + 1)
        drawing.marker(x(at[0]), y(at[1]), rank, _tooltip(rank, run, plot.unit))
        low, high = run.forgotten.interval or (at[0], at[0])
        ends = max(x(low), frame.left), min(x(high), frame.right)
        points.append(Point(x(at[0]), y(at[1]), fmt.shorten(name, longest), run.recommended, *ends))
    _list_names(drawing, draw_names(drawing, points, frame), runs, longest)
    _better(drawing, frame)
    return drawing


def _tooltip(rank: int, run: TradeoffPoint, unit: str) -> str:
    """Return the tooltip of a run's marker."""
    numbers = (f"{what} {fmt.estimate(e, fmt.decimals([e.value]))} {unit}".strip()
               for what, e in (("learnt", run.learnt), ("forgotten", run.forgotten)))  # fmt: skip
    return "\n".join([f"{rank + 1}. {run.label}", *numbers])


def _better(drawing: Drawing, frame: Frame) -> None:
    """Draw an arrow to the better side, above the plot."""
    drawing.line(frame.right - 252, 21, frame.right - 264, 11, INK, 2)
    drawing.path(f"M{frame.right - 270},6l11,2.5l-6.5,8.5z", fill=INK)
    drawing.text(frame.right, 20, "better: more learnt, less forgotten", "end", bold=True)


def _list_names(
    drawing: Drawing, names: Sequence[str], runs: Sequence[tuple[int, TradeoffPoint]], longest: int
) -> None:
    """List below the plot the names for which it has no room, each after its marker."""
    for name in names:
        for rank, run in runs:
            if name in (fmt.shorten(run.label, longest), str(rank + 1)):
                drawing.height += 1.5 * SIZE
                drawing.marker(14, drawing.height - 12, rank)
                drawing.text(26, drawing.height - 8, name)


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points (forgotten, learnt) that no other point, including the base model (0, 0), beats at both."""
    best: list[tuple[float, float]] = []
    for forgotten, learnt in sorted({*points, (0.0, 0.0)}, key=lambda point: (point[0], -point[1])):
        if not best or learnt > best[-1][1]:
            best.append((forgotten, learnt))
    return best


def _worse(drawing: Drawing, x: Scale, y: Scale, frame: Frame) -> None:
    """Shade the area in which more is forgotten than was learnt."""
    steps = [x.low + (x.high - x.low) * i / 60 for i in range(61)]
    edge = "L".join(f"{x(s):.1f},{min(max(y(s), frame.top), frame.bottom):.1f}" for s in steps)
    drawing.path(f"M{frame.left},{frame.bottom}L{edge}L{frame.right},{frame.bottom}z", fill="rgb(var(--loss) / 0.1)")
    if y(x.high) < frame.bottom - 3 * SIZE:
        drawing.text(frame.right - 8, frame.bottom - 10, "more forgotten than learnt", "end", FAINT)


def _staircase(drawing: Drawing, x: Scale, y: Scale, best: Sequence[tuple[float, float]], frame: Frame) -> None:
    corners: list[tuple[float, float]] = []
    for forgotten, learnt in best:
        if corners:
            corners.append((x(forgotten), corners[-1][1]))
        corners.append((x(forgotten), y(learnt)))
    path = "L".join(f"{a:.1f},{b:.1f}" for a, b in [*corners, (frame.right, corners[-1][1])])
    drawing.path(f"M{path}", FAINT, width=1.2, dash="5 4")


def _whiskers(drawing: Drawing, x: Scale, y: Scale, rank: int, run: TradeoffPoint, frame: Frame) -> None:
    at, colour = (x(run.forgotten.value or 0.0), y(run.learnt.value or 0.0)), series_colour(rank)
    if run.forgotten.interval is not None:
        low, high = (min(max(x(end), frame.left), frame.right) for end in run.forgotten.interval)
        drawing.line(low, at[1], high, at[1], colour, 1.3)
    if run.learnt.interval is not None:
        low, high = (min(max(y(end), frame.top), frame.bottom) for end in run.learnt.interval)
        drawing.line(at[0], low, at[0], high, colour, 1.3)
