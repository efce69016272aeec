"""Plot the stream: each domain, general text, and the score matrix."""

from __future__ import annotations

import math

from matplotlib.figure import Figure as MatplotlibFigure

from everlearn.comparison.comparison import Comparison
from everlearn.report.drawing import SERIES
from everlearn.report.plots.registry import plot

_NUMBERS = 144
"""Maximum number of cells of a matrix with numbers."""


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
