"""Plots of a comparison by name, with matplotlib, for programs and papers; the report draws its own figures as SVG.

Colours, fonts and sizes are those of matplotlib's settings (`rcParams`, style sheets), which users can change, as well
as the figure afterwards.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import TypeVar

from matplotlib.figure import Figure as MatplotlibFigure

from everlearn.comparison.comparison import Comparison
from everlearn.comparison.training_log import curve, starts
from everlearn.errors import RunError, did_you_mean
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import SERIES

_NUMBERS = 144
"""Maximum number of cells of a matrix with numbers."""


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


@plot("domains")
def domains(comparison: Comparison, figure: MatplotlibFigure) -> bool:
    """Plot bars of each domain against the base model, just learnt and at the end, for the six best runs."""
    learnt, left = (comparison.measure(comparison.lead, key) for key in ("learnt", "gained"))
    if learnt is None or left is None or not learnt.columns:
        return False
    pools, names = comparison.ranking[:SERIES], list(learnt.columns)
    for axes, pool in zip(figure.subplots(1, len(pools), sharey=True, squeeze=False)[0], pools, strict=True):
        for offset, label, measure in ((-0.2, "just learnt", learnt), (0.2, "at the end", left)):
            values = [_known(measure.columns[name][pool].value) if name in measure.columns else 0.0 for name in names]
            axes.barh([place + offset for place in range(len(names))], values, height=0.4, label=label)
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set(yticks=range(len(names)), yticklabels=names, title=comparison.labels[pool])
        axes.set_xlabel(f"better than the base ({learnt.unit})")
    figure.axes[0].invert_yaxis()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return True


@plot("general")
def general(comparison: Comparison, figure: MatplotlibFigure) -> bool:
    """Plot general text after each domain, a line for each run and set."""
    metric = comparison.text_metric
    if metric is None or not comparison.general:
        return False
    axes = figure.subplots()
    for pool in comparison.ranking:
        matrix = comparison.matrices(metric, pool)[0]
        for name in comparison.general:
            scores = [_known(comparison.score(metric, pool, row, name)) for row in range(len(matrix.rows))]
            label = comparison.labels[pool] + (f", {name}" if len(comparison.general) > 1 else "")
            axes.plot(range(len(scores)), scores, marker="o", label=label)
    axes.set(
        xticks=range(len(matrix.rows)),
        xticklabels=matrix.rows,
        xlabel="after",
        ylabel=f"general ({matrix.printed_unit})",
    )
    axes.legend()
    return True


@plot("matrix")
def matrix(comparison: Comparison, figure: MatplotlibFigure) -> bool:
    """Plot the best run's scores: checkpoints (rows) on held-out sets (columns), coloured against the base model."""
    metric = comparison.lead
    if metric is None:
        return False
    pool = comparison.ranking[0]
    scores_matrix = comparison.matrices(metric, pool)[0]
    rows, names = range(len(scores_matrix.rows)), scores_matrix.columns
    values = [[_known(comparison.score(metric, pool, row, name)) for name in names] for row in rows]
    sign = 1 if scores_matrix.higher_is_better else -1
    change = [[sign * (value - base) for value, base in zip(row, values[0], strict=True)] for row in values]
    widest = max((abs(value) for row in change for value in row if not math.isnan(value)), default=1.0) or 1.0
    axes = figure.subplots()
    image = axes.imshow(change, cmap="RdBu", vmin=-widest, vmax=widest, aspect="auto")
    if len(values) * len(names) <= _NUMBERS:
        for row, scores in enumerate(values):
            for column, value in enumerate(scores):
                if not math.isnan(value):
                    dark = abs(change[row][column]) > 0.6 * widest
                    axes.text(column, row, f"{value:.3g}", ha="center", va="center", color="white" if dark else "black")
    axes.set(xticks=range(len(names)), yticks=rows, yticklabels=scores_matrix.rows, ylabel="after")
    axes.set_xticklabels(names, rotation=30, ha="right")
    axes.set_title(f"{comparison.labels[pool]}: {scores_matrix.title}")
    figure.colorbar(
        image,
        ax=axes,
        label=f"better than the base model{f' ({scores_matrix.printed_unit})' if scores_matrix.printed_unit else ''}",
    )
    return True


def _known(value: float | None) -> float:
    return math.nan if value is None else value
