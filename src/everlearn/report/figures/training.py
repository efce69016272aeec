"""The training loss, and what the methods add to it."""

from __future__ import annotations

from collections.abc import Iterator

from everlearn.report import formatting as fmt
from everlearn.report.comparison import Comparison
from everlearn.report.drawing import SERIES, spread
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.registry import Plate, figure
from everlearn.report.training_log import curve, starts


@figure("training loss", title="Training loss", data=Comparison, section="training")
def training_loss(comparison: Comparison) -> Iterator[Plate]:
    """Of the first six runs of the ranking over all their stages; all share one range."""
    found = [(rank, pool, comparison.pools[pool].runs[0]) for rank, pool in enumerate(comparison.ranking[:SERIES])]
    drawn = [(rank, pool, *curve(run, "loss"), starts(run)) for rank, pool, run in found]
    values = [value for _, _, _, y, _ in drawn for value in y if value is not None]
    if not values:
        return
    limits = spread(values, zero=False)
    for rank, pool, x, y, marks in drawn:
        if y:
            rules = marks if len(marks) <= 30 else ()
            caption = f"{comparison.labels[pool]}: training loss" + (
                "; dashed lines are where a stage starts." if rules else "."
            )
            numbers = f"It ends at {fmt.fixed(y[-1])}."
            yield from curves(
                Curves(
                    "training loss", [Curve(rank, x, y)], caption, numbers,
                    marks=rules, markers=False, x_label="step", limits=limits,
                )
            )  # fmt: skip


@figure("method losses", title="What the methods add to the loss", data=Comparison, section="method losses")
def method_losses(comparison: Comparison) -> Iterator[Plate]:
    """One small plot for each logged part."""
    for rank, pool in enumerate(comparison.ranking[:SERIES]):
        run = comparison.pools[pool].runs[0]
        for key in dict.fromkeys(key for line in run.log for key in line if "/" in key):
            x, y = curve(run, key)
            if y:
                caption, numbers = f"{comparison.labels[pool]}: {key}", f"It ends at {fmt.fixed(y[-1])}."
                yield from curves(
                    Curves("", [Curve(rank, x, y)], caption, numbers, markers=False, small=True, x_label="step")
                )
