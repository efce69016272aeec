"""Show the scores of end tasks while the cells of a grid trained: numbers, a table, learning against forgetting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everlearn.comparison import formatting as fmt
from everlearn.comparison.during_training import Axes, Waypoint, axes, change, mean_of
from everlearn.evaluation.metrics import METRICS
from everlearn.grid.cells import CellResult
from everlearn.report.drawing import SERIES, legend_of
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.during_training import Along
from everlearn.report.tables import Table, TableCell

KEPT, FORGOTTEN = "kept", "kept_forgotten"
"""Names of numbers: the score of tasks without a domain at the end, and its loss against the base model."""


def waypoints(cell: CellResult) -> list[Waypoint]:
    """Return the scores along a cell's training; empty if end tasks were not scored inside stages."""
    return [Waypoint(point.tokens, point.learnt, point.kept) for point in cell.points]


def asked(cell: CellResult, number: str) -> dict[str, float]:
    """Return the values over whose mean a number of end tasks is taken: end task → value.

    Args:
        cell: a cell of a grid.
        number: :data:`KEPT` or :data:`FORGOTTEN` for tasks without a domain, or a metric for the others at the end.
    """
    along = waypoints(cell)
    drawn = axes(along[-1]) if along else []
    if not drawn:
        return {}
    kept = drawn[0].kept
    if number == FORGOTTEN:
        return change("general_drift", kept, along[0].kept, along[-1].kept)
    return dict(along[-1].kept[kept[0]] if number == KEPT else along[-1].learnt.get(number, {}))


def asked_numbers(cell: CellResult) -> dict[str, float]:
    """Return the means of these numbers that the cell has."""
    wanted = (KEPT, FORGOTTEN, *(cell.points[-1].learnt if cell.points else ()))
    found = {number: asked(cell, number) for number in wanted if number != "bits_per_byte"}
    return {number: sum(values.values()) / len(values) for number, values in found.items() if values}


class AlongTraining:
    """Rows whose end tasks were scored inside stages, each the mean over its runs.

    Args:
        titles: row → its title, in the order of the page.
        cells: the results of the grid.
    """

    def __init__(self, titles: Mapping[str, str], cells: Sequence[CellResult]) -> None:
        each = {title: [waypoints(c) for c in cells if c.entry == entry] for entry, title in titles.items()}
        self.entries = {title: along for title, runs in each.items() if (along := mean_of(runs))}
        ends = next(iter(self.entries.values()), None)
        self.axes: list[Axes] = axes(ends[-1]) if ends else []

    def legend(self) -> list[tuple[str, str, int]]:
        """Return title, marker and rank of each drawn row."""
        return legend_of(self.entries)

    def plates(self) -> list[Plate]:
        """Return a figure for each metric of what is learnt, and one for text alone."""
        labels, each = tuple(self.entries)[:SERIES], tuple(map(tuple, self.entries.values()))[:SERIES]
        return [plate for own in self.axes for plate in draw("along", Along(own, labels, each))]

    def tables(self) -> list[Table]:
        """Return one table of the base model and every row at its end, or none."""
        if not self.axes:
            return []
        metric, kept = self.axes[0].kept
        learnt = list(dict.fromkeys((own.learnt[0], name) for own in self.axes for name in own.learnt[1]))
        base = next(iter(self.entries.values()))[0]

        def cells(found: Waypoint) -> tuple[TableCell, ...]:
            general = [found.kept.get(metric, {}).get(name) for name in kept]
            known = [value for value in general if value is not None]
            lost = change("general_drift", (metric, kept), base.kept, found.kept)
            return (
                *(_shown(name, found.learnt.get(name, {}).get(column)) for name, column in learnt),
                *(_shown(metric, value) for value in general),
                _shown(metric, sum(known) / len(kept) if len(known) == len(kept) else None),
                _shown(metric, sum(lost.values()) / len(lost) if lost else None, signed=True),
            )

        header = [f"{METRICS[name].title}: {of} {_arrow(name)}" for name, of in learnt]
        header += [f"{METRICS[metric].title}: {of} {_arrow(metric)}" for of in kept]
        rows = {"Base model": base} | {title: found[-1] for title, found in self.entries.items()}
        return [
            Table(
                "What is learnt, and tasks of no domain, at the end",
                ("Method", *header, f"their mean {_arrow(metric)}", "forgotten of it ↓"),
                tuple((title, cells(found)) for title, found in rows.items()),
                "Means over runs; shares in percent. Forgotten: the base model's mean less that at the end.",
            )
        ]


def _arrow(metric: str) -> str:
    return "↑" if METRICS[metric].higher_is_better else "↓"


def _shown(metric: str, value: float | None, signed: bool = False) -> TableCell:
    scale, places = (100, 2) if METRICS[metric].unit == "fraction" else (1, 4)
    return TableCell(fmt.fixed(None if value is None else scale * value, places, signed))
