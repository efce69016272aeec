"""Draw what each domain gained, learnt and lost, in several runs."""

from __future__ import annotations

from collections.abc import Iterator

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.measures import Measure
from everlearn.evaluation.estimate import Estimate
from everlearn.report.drawing import SERIES
from everlearn.report.figures.dots import Dots, dots
from everlearn.report.figures.heat import Heat, Shade, heat
from everlearn.report.figures.registry import Plate, figure

_ROWS = 24
"""Maximum number of domains for dots (and six runs); beyond that a heat map is drawn."""


@figure("domains", data=Comparison, section="domains")
def domains(comparison: Comparison) -> Iterator[Plate]:
    """Draw a panel for each measure, with a row for each domain and a dot with its interval for each run.

    If there are too many domains or runs, nothing is drawn, and :func:`many_domains` draws a heat map instead.
    """
    # All panels have the same rows, so that they can be read across; the last domain has no forgetting.
    measures, rows, many = _shown(comparison)
    labels, unknown = [comparison.labels[pool] for pool in comparison.ranking], (Estimate(),) * len(comparison.pools)
    for measure in () if many else measures:
        runs = [[measure.columns.get(c, unknown)[pool] for c in rows] for pool in comparison.ranking]
        good = "to the right is better" if measure.higher_is_better else "to the left is better"
        yield from dots(Dots(measure.unit or measure.metric, rows, runs, f"{measure.title}; {good}.", labels))


def _shown(comparison: Comparison) -> tuple[list[Measure], list[str], bool]:
    """Return the measures, their domains, and whether there are too many domains or runs for dots."""
    measures = [m for m in comparison.headline if m.quantity.signed and m.quantity.averaged and m.columns]
    rows = list(dict.fromkeys(column for measure in measures for column in measure.columns))
    return measures, rows, len(comparison.pools) > SERIES or len(rows) > _ROWS


@figure("domains of many runs", data=Comparison, section="many domains")
def many_domains(comparison: Comparison) -> Iterator[Plate]:
    """Draw a heat map for many runs or domains: runs in rows, domains in columns."""
    measures, _, many = _shown(comparison)
    for measure in measures if many and len(comparison.pools) > 1 else ():
        rows = []
        for pool in comparison.ranking:
            cells = [measure.columns[c][pool] for c in measure.columns]
            sign = -1.0 if measure.higher_is_better else 1.0
            rows.append((
                comparison.labels[pool],
                [
                    Shade(None if e.value is None else sign * e.value, fmt.fixed(e.value, measure.places, True))
                    for e in cells
                ],
            ))  # fmt: skip
        unit = f" ({measure.unit})" if measure.unit else ""
        yield from heat(Heat(f"{measure.title}{unit}", "run", list(measure.columns), rows))
