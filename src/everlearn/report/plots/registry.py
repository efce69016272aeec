"""Register plots by name: functions that draw a comparison with matplotlib.

Colours, fonts and sizes are those of matplotlib's settings (`rcParams`, style sheets), which users can change, as well
as the figure afterwards.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TypeVar

from matplotlib.figure import Figure as MatplotlibFigure

from everlearn.comparison.comparison import Comparison
from everlearn.errors import RunError, did_you_mean


class Plot(MatplotlibFigure):
    """A matplotlib figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()


Draw = Callable[[Comparison, MatplotlibFigure], bool]
"""Draws on an empty figure; returns False if the runs lack the data."""
PLOTS: dict[str, Draw] = {}
"""Name → function that draws the plot."""
_Draw = TypeVar("_Draw", bound=Draw)


def plot(name: str) -> Callable[[_Draw], _Draw]:
    """Register a function that draws a plot.

    Raises:
        ValueError: the name is taken.
    """

    def register(draw: _Draw) -> _Draw:
        if name in PLOTS:
            raise ValueError(f"There is a plot '{name}' already: every plot needs a name of its own.")
        PLOTS[name] = draw
        return draw

    return register


def plotted(name: str, comparison: Comparison) -> Plot:
    """Make a plot of one or more runs.

    Args:
        name: name in :data:`PLOTS`.
        comparison: the runs.

    Raises:
        RunError: there is no such plot, or the runs lack its data.
    """
    if name not in PLOTS:
        raise RunError(f"There is no plot '{name}'.{did_you_mean(name, PLOTS)}")
    figure = Plot(layout="constrained")
    if not PLOTS[name](comparison, figure):
        raise RunError(f"{' and '.join(comparison.labels[:3])}: nothing was measured that the plot '{name}' shows.")
    return figure
