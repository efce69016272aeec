"""Draw learning against forgetting for the trials of a search, with plain training as a curve over its rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.report.drawing import INK, WIDTH, Drawing, Scale, series_colour, spread
from everlearn.report.figures.labels import Frame
from everlearn.report.figures.registry import Plate, figure, plate

_WIDE = Frame(560, 360, left=56, right=548, top=32, bottom=310)
_NARROW = Frame(WIDTH, 380, left=42, right=WIDTH - 6, top=32, bottom=336)

_FAR = 3
"""Trials that lost more than this multiple of the largest gain are not drawn, as they would squeeze the others."""


@dataclass(frozen=True)
class Tried:
    """A complete trial.

    Attributes:
        forgotten: bits per byte forgotten by the end, general drift included.
        learnt: bits per byte gained right after each stage.
        told: text of the tooltip.
        chosen: whether it is recommended.
    """

    forgotten: float
    learnt: float
    setting: str
    chosen: bool = False


@dataclass(frozen=True)
class Trials:
    """The trials of a search.

    Attributes:
        rows: name and trials of each method, in the order of their colours. A line joins the trials of the first one.
        lost: title of the horizontal axis.
        unit: unit of both axes.
    """

    rows: Sequence[tuple[str, Sequence[Tried]]]
    lost: str
    unit: str


@figure("trials", data=Trials)
def trials(plot: Trials) -> Iterator[Plate]:
    """Draw a mark for each trial, and a ring around the recommended one."""
    every = [trial for _, own in plot.rows for trial in own]
    if len(every) < 2:
        return
    most = max(0.0, *(trial.learnt for trial in every))
    shown = [trial for trial in every if not most or (trial.forgotten <= _FAR * most and trial.learnt >= -most)]
    joined = plot.rows[0][0]
    caption = (
        f"Up is more learnt, left is less lost ({plot.lost}); each mark is a trial. The line joins the trials of "
        f"{joined} in the order of their learning rates; the cross is the base model, the ring the recommended trial."
    )
    if len(shown) < len(every):
        caption += f" Far outside and left out: {len(every) - len(shown)}."
    numbers = "; ".join(f"{name}: {', '.join(trial.setting for trial in own)}" for name, own in plot.rows if own)
    yield plate(_drawn(plot, shown, _WIDE), caption, f"{numbers}.", _drawn(plot, shown, _NARROW))


def _drawn(plot: Trials, shown: Sequence[Tried], frame: Frame) -> Drawing:
    drawing = Drawing(frame.width, frame.height)
    x = Scale(*spread((trial.forgotten for trial in shown), margin=0.1), frame.left, frame.right)
    y = Scale(*spread((trial.learnt for trial in shown), margin=0.1), frame.bottom, frame.top)
    drawing.x_axis(x, frame.bottom, f"{plot.lost} ({plot.unit})", grid=frame.top)
    drawing.y_axis(y, frame.left, f"learnt ({plot.unit})", grid=frame.right)
    drawing.cross(x(0), y(0))
    rows = [(name, [trial for trial in own if trial in shown]) for name, own in plot.rows]
    drawing.polyline([(x(trial.forgotten), y(trial.learnt)) for trial in rows[0][1]], series_colour(0), 1.2)
    for series, (name, own) in enumerate(rows):
        for trial in own:
            at = x(trial.forgotten), y(trial.learnt)
            if trial.chosen:
                drawing.path(f"M{at[0]:.1f},{at[1]:.1f}m-9,0a9,9 0 1,0 18,0a9,9 0 1,0 -18,0z", INK, width=1.4)
            numbers = f"learnt {fmt.fixed(trial.learnt, 3)}, lost {fmt.fixed(trial.forgotten, 3)}"
            drawing.marker(*at, series, f"{name}\n{trial.setting}\n{numbers}")
    return drawing
