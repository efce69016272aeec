"""Show the scores of end tasks while the cells of a grid trained: a table, learning against forgetting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everlearn.comparison import formatting as fmt
from everlearn.comparison.during_training import Axes, axes, change, mean_of, moments
from everlearn.comparison.runs import Run
from everlearn.evaluation.metrics import METRICS
from everlearn.evaluation.results import Waypoint
from everlearn.report.drawing import SERIES, legend_of
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.during_training import Along
from everlearn.report.tables import Table, TableCell


class AlongTraining:
    """Rows whose end tasks were scored inside stages, each the mean over its runs.

    Args:
        titles: row → its title, in the order of the page.
        cells: the results of the grid.
    """

    def __init__(self, titles: Mapping[str, str], cells: Sequence[Run]) -> None:
        each = {title: [moments(c) for c in cells if c.grid.row == entry] for entry, title in titles.items()}
        self.entries = {title: along for title, runs in each.items() if (along := mean_of(runs))}
        ends = next(iter(self.entries.values()), None)
        self.axes: list[Axes] = axes(ends[-1]) if ends else []

    def legend(self) -> list[tuple[str, str, int]]:
        """Return title, marker and rank of each drawn row."""
        return legend_of(self.entries)

    def plates(self) -> list[Plate]:
        """Return a figure for each metric of the learnt tasks, and one for text alone."""
        labels, each = tuple(self.entries)[:SERIES], tuple(map(tuple, self.entries.values()))[:SERIES]
        return [plate for own in self.axes for plate in draw("along", Along(own, labels, each))]

    def tables(self) -> list[Table]:
        """Return one table of the base model and every row at its end, or none."""
        if not self.axes:
            return []
        metric, kept = self.axes[0].kept
        learnt = list(dict.fromkeys((own.learnt[0], name) for own in self.axes for name in own.learnt[1]))
        base = next(iter(self.entries.values()))[0]

        def cells(waypoint: Waypoint) -> tuple[TableCell, ...]:
            general = [waypoint.kept.get(metric, {}).get(name) for name in kept]
            known = [value for value in general if value is not None]
            lost = change("general_drift", (metric, kept), base.kept, waypoint.kept)
            return (
                *(_shown(name, waypoint.learnt.get(name, {}).get(column)) for name, column in learnt),
                *(_shown(metric, value) for value in general),
                _shown(metric, sum(known) / len(kept) if len(known) == len(kept) else None),
                _shown(metric, sum(lost.values()) / len(lost) if lost else None, signed=True),
            )

        header = [f"{METRICS[name].title}: {of} {_arrow(name)}" for name, of in learnt]
        header += [f"{METRICS[metric].title}: {of} {_arrow(metric)}" for of in kept]
        rows = {"Base model": base} | {title: waypoints[-1] for title, waypoints in self.entries.items()}
        return [
            Table(
                "What is learnt, and tasks of no domain, at the end",
                ("Method", *header, f"their mean {_arrow(metric)}", "forgotten of it ↓"),
                tuple((title, cells(end)) for title, end in rows.items()),
                "Means over runs; shares in percent. Forgotten: the base model's mean minus that at the end.",
            )
        ]


def _arrow(metric: str) -> str:
    return "↑" if METRICS[metric].higher_is_better else "↓"


def _shown(metric: str, value: float | None, signed: bool = False) -> TableCell:
    scale, places = (100, 2) if METRICS[metric].unit == "fraction" else (1, 4)
    return TableCell(fmt.fixed(None if value is None else scale * value, places, signed))
