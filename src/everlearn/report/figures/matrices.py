"""Draw the score matrices as heat maps: checkpoints × scored sets, coloured by the change since the base model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.evaluation.build import BASE
from everlearn.report.drawing import SERIES
from everlearn.report.figures.heat import READABLE, Heat, Shade, heat
from everlearn.report.figures.registry import Plate, figure

_OTHERS = 1000
"""Maximum number of cells of all other metrics together; above it they are left out."""


@figure("matrices", data=Comparison, section="matrices")
def matrices(comparison: Comparison) -> Iterator[Plate]:
    """Draw the matrices of the main metrics of text and of end tasks, for the first six runs of the ranking."""
    leads = [metric for metric in (comparison.text_metric, *comparison.task_metrics[:1]) if metric]
    for metric in leads:
        for pool in comparison.ranking[:SERIES]:
            yield from heat(matrix_heat(comparison, pool, metric))


@figure("other matrices", data=Comparison, section="other matrices")
def other_matrices(comparison: Comparison) -> Iterator[Plate]:
    """Draw the matrices of the other metrics if they are small enough."""
    leads = {comparison.text_metric, *comparison.task_metrics[:1]}
    shown = [
        (pool, metric, run.matrices[metric])
        for pool in comparison.ranking
        for run in comparison.pools[pool].runs[:1]
        for metric in run.matrices
        if metric not in leads
    ]
    if sum(len(matrix.rows) * len(matrix.columns) for _, _, matrix in shown) <= _OTHERS:
        for pool, metric, _ in shown:
            yield from heat(matrix_heat(comparison, pool, metric))


def matrix_heat(comparison: Comparison, pool: int, metric: str) -> Heat:
    """Return the heat map of a pool's matrix; with several seeds, that of its first run."""
    run = comparison.pools[pool].runs[0]
    matrix = run.matrices[metric]
    places = fmt.decimals(estimate.value for estimate in matrix.scores.values())
    first = "base" if matrix.rows[:1] == [BASE] else fmt.shorten(matrix.rows[0], 20) if matrix.rows else ""
    own = {column: matrix.own_stage(column) for column in matrix.columns}
    small = len(matrix.rows) * len(matrix.columns) <= READABLE
    rows = []
    for i, label in enumerate(matrix.rows):
        shades = []
        for column in matrix.columns:
            change, estimate = matrix.worsening(column, 0, i), matrix.cell(i, column)
            text, tooltip = "", ""
            if small:
                text = fmt.fixed(estimate.value, places)
                tooltip = "not measured" if estimate.value is None else fmt.interval(estimate, places)
                if i and change is not None:
                    tooltip += (
                        f" {'better' if change < 0 else 'worse'} than {first} by {fmt.fixed(abs(change), places)}"
                    )
            shades.append(Shade(change, text, tooltip.strip(), own[column] == i))
        rows.append((label if i or label != BASE else "base model", shades))
    unit = f" ({matrix.printed_unit})" if matrix.printed_unit else ""
    seed = f", seed {run.results.get('seed')}" if len(comparison.pools[pool].runs) > 1 else ""
    title = f"{comparison.labels[pool]}{seed}: {metric.replace('_', ' ')}{unit}"
    return Heat(
        title,
        "after" if run.domains else "model",
        matrix.columns,
        rows,
        note=f"The numbers are in {run.place}/results.json.",
        column_rules=_borders([run.groups.get(column) for column in matrix.columns]),
        row_rules=_borders([run.groups.get(label) for label in matrix.rows]),
    )


def _borders(groups: Sequence[str | None]) -> list[int]:
    """Return the positions at which another super-domain begins."""
    return [place for place in range(1, len(groups)) if groups[place] != groups[place - 1]]
