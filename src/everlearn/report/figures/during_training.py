"""Draw learning against forgetting while a run trains: a line for each run, from the base model to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.during_training import Axes, axes, mean_of, moments
from everlearn.evaluation.results import Waypoint
from everlearn.report.drawing import SERIES
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.registry import Plate, figure


@dataclass(frozen=True)
class Along:
    """Runs of one page, the best at the end first.

    Attributes:
        axes: the two axes.
        labels: label of each run.
        moments: waypoints of each run, from the base model on.
    """

    axes: Axes
    labels: tuple[str, ...]
    moments: tuple[tuple[Waypoint, ...], ...]


@figure("along", data=Along)
def along(plot: Along) -> Iterator[Plate]:
    """Draw a line for each run through its scores during training."""
    lines, ends = [], []
    for rank, (label, waypoints) in enumerate(zip(plot.labels, plot.moments, strict=True)):
        points = plot.axes.points(waypoints)
        if len(points) > 1:
            lines.append(Curve(rank, [x for x, _ in points], [y for _, y in points], label=label))
            ends.append(f"{label} ends at {fmt.fixed(points[-1][1])} learnt, {fmt.fixed(points[-1][0])} forgotten")
    if lines:
        learnt, forgotten = plot.axes.labels
        caption = f"{learnt}, against {forgotten[:1].lower()}{forgotten[1:]}: a line a run, from the base model (0, 0)."
        yield from curves(Curves(learnt, lines, caption, f"{'; '.join(ends)}.", zero=True, x_label=forgotten))


@figure("along training", data=Comparison, section="along")
def along_training(comparison: Comparison) -> Iterator[Plate]:
    """Draw a figure for each metric of what was learnt, with means over seeds."""
    pools = comparison.ranking[:SERIES]
    each = tuple(tuple(mean_of([moments(run) for run in comparison.pools[pool].runs])) for pool in pools)
    labels = tuple(comparison.labels[pool] for pool in pools)
    if known := next((waypoints for waypoints in each if waypoints), None):
        for own in axes(known[-1]):
            yield from along(Along(own, labels, each))
