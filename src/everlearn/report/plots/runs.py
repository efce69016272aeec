"""Plot runs against each other: learning against forgetting, and the training loss."""

from __future__ import annotations

from matplotlib.figure import Figure as MatplotlibFigure

from everlearn.comparison.comparison import Comparison
from everlearn.comparison.training_log import curve, starts
from everlearn.evaluation.estimate import Estimate
from everlearn.report.plots.registry import plot


@plot("tradeoff")
def tradeoff(comparison: Comparison, figure: MatplotlibFigure) -> bool:
    """Plot a point for each run: forgotten to the right, learnt upwards, with 95 % intervals.

    Up and left is better. On the dashed line a run has forgotten as much as it learnt.
    """
    learnt, forgotten = (comparison.measure(comparison.lead, key) for key in ("learnt", "forgotten"))
    if learnt is None or forgotten is None:
        return False
    axes = figure.subplots()
    for pool in comparison.ranking:
        x, y = forgotten.estimates[pool], learnt.estimates[pool]
        if x.value is None or y.value is None:
            continue
        axes.errorbar(
            x.value, y.value, xerr=_reach(x), yerr=_reach(y), marker="o", capsize=2, label=comparison.labels[pool]
        )
    axes.plot(0, 0, marker="x", color="grey", linestyle="none", label="base model")
    axes.axline((0, 0), slope=1, color="grey", linestyle="--", linewidth=0.8)
    axes.set(xlabel=f"forgotten by the end ({forgotten.unit})", ylabel=f"learnt ({learnt.unit})")
    axes.legend()
    return True


def _reach(estimate: Estimate) -> list[list[float]] | None:
    """Return how far an interval extends below and above the value."""
    if estimate.interval is None or estimate.value is None:
        return None
    low, high = estimate.interval
    return [[max(0.0, estimate.value - low)], [max(0.0, high - estimate.value)]]


@plot("training")
def training(comparison: Comparison, figure: MatplotlibFigure) -> bool:
    """Plot the training loss over all stages, a line for each run; dotted lines mark the first run's stages."""
    drawn = [(comparison.labels[pool], *curve(comparison.pools[pool].runs[0], "loss")) for pool in comparison.ranking]
    drawn = [(label, x, y) for label, x, y in drawn if x]
    if not drawn:
        return False
    axes = figure.subplots()
    for label, x, y in drawn:
        axes.plot(x, [float("nan") if value is None else value for value in y], label=label)
    for start in starts(comparison.runs[0]):
        axes.axvline(start, color="grey", linestyle=":", linewidth=0.8)
    axes.set(xlabel="step", ylabel="training loss")
    axes.legend()
    return True
