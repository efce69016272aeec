"""Draw a small plot for each domain: its score after every stage."""

from __future__ import annotations

from collections.abc import Iterator

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.report.drawing import SERIES
from everlearn.report.figures.curves import Curve, Curves, curves, in_one_scale
from everlearn.report.figures.registry import Plate, figure

SHOWN = 12
"""Maximum number of plots; with more domains, those that lost the most. The score matrices have all of them."""


@figure("each domain", data=Comparison, section="each domain")
def each_domain(comparison: Comparison) -> Iterator[Plate]:
    """Draw the plots; a domain's own stage is marked if it is the same in all runs."""
    metric = comparison.lead
    if metric is None:
        return
    unit = comparison.matrices(metric)[0].printed_unit or metric.replace("_", " ")
    plots = []
    for domain in chosen(comparison):
        lines = []
        for pool in comparison.ranking[:SERIES]:
            matrices = comparison.matrices(metric, pool)
            if not all(domain in matrix.columns for matrix in matrices):
                continue
            stages = range(min(len(matrix.rows) for matrix in matrices))
            scores = [comparison.score(metric, pool, stage, domain) for stage in stages]
            # The line goes through the stages that were measured.
            points = [(stage, value) for stage, value in zip(stages, scores, strict=True) if value is not None]
            if points:
                x, y = zip(*points, strict=True)
                lines.append(Curve(comparison.ranks[pool], x, y, label=comparison.labels[pool]))
        if not lines:
            continue
        stages_of = {run.domains.index(domain) + 1 for run in comparison.runs}
        marks = sorted(stages_of) if len(stages_of) == 1 else []
        names = [comparison.labels[pool] for pool in comparison.ranking]
        ends = ", ".join(f"{names[line.series]} ends at {fmt.fixed(line.y[-1])}" for line in lines)
        numbers = f"{unit} after each stage: {ends}."
        plots.append(Curves(unit, lines, domain, numbers, marks=marks, small=True, x_label="stage"))
    for plot in in_one_scale(plots):
        yield from curves(plot)


def chosen(comparison: Comparison) -> list[str]:
    """Return the domains with a plot: all, or those that lost the most in the reference, in the stream's order."""
    if len(comparison.domains) <= SHOWN:
        return list(comparison.domains)
    forgotten = comparison.measure(comparison.lead, "forgotten")
    lost = {c: estimates[0].value or 0.0 for c, estimates in forgotten.columns.items()} if forgotten else {}
    worst = sorted(comparison.domains, key=lambda domain: -lost.get(domain, 0.0))[:SHOWN]
    return [domain for domain in comparison.domains if domain in worst]
