"""Draw the training loss, and the losses that the methods add."""

from __future__ import annotations

from collections.abc import Iterator

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.training_log import curve, starts
from everlearn.report.drawing import SERIES
from everlearn.report.figures.curves import Curve, Curves, curves
from everlearn.report.figures.registry import Plate, figure


@figure("training loss", data=Comparison, section="training")
def training_loss(comparison: Comparison) -> Iterator[Plate]:
    """Draw the loss of the first six runs of the ranking over all their stages, on the same axes."""
    runs = {pool: comparison.pools[pool].runs[0] for pool in comparison.ranking[:SERIES]}
    lines, ends = [], []
    for pool, run in runs.items():
        x, y = curve(run, "loss")
        if y:
            lines.append(Curve(comparison.ranks[pool], x, y, label=comparison.labels[pool]))
            ends.append(f"{comparison.labels[pool]} ends at {fmt.fixed(y[-1])}")
    if not lines:
        return
    # Runs with different numbers of steps share no borders between stages.
    borders = {tuple(starts(run)) for run in runs.values()}
    marks = next(iter(borders)) if len(borders) == 1 else ()
    marks = marks if len(marks) <= 30 else ()
    label = (
        f"{comparison.labels[comparison.ranking[0]]}: training loss" if len(comparison.pools) == 1 else "Training loss"
    )
    caption = label + ("; dashed lines are where a stage starts." if marks else ".")
    yield from curves(
        Curves("training loss", lines, caption, f"{'; '.join(ends)}.", marks=marks, markers=False, x_label="step")
    )


@figure("method losses", data=Comparison, section="method losses")
def method_losses(comparison: Comparison) -> Iterator[Plate]:
    """Draw a small plot for each logged part."""
    for rank, pool in enumerate(comparison.ranking[:SERIES]):
        run = comparison.pools[pool].runs[0]
        for key in dict.fromkeys(key for line in run.log for key in line if "/" in key):
            x, y = curve(run, key)
            if y:
                caption, numbers = f"{comparison.labels[pool]}: {key}", f"It ends at {fmt.fixed(y[-1])}."
                yield from curves(
                    Curves(
                        "", [Curve(rank, x, y, label=key)], caption, numbers, markers=False, small=True, x_label="step"
                    )
                )
