"""What the end tasks said while the cells of a grid trained: a table of the ends, and learning against forgetting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everlearn.benchmarking.cells import CellResult
from everlearn.evaluation.metrics import METRICS
from everlearn.report import formatting as fmt
from everlearn.report.along import Axes, Waypoint, axes, mean_of
from everlearn.report.drawing import SERIES
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.along import Along
from everlearn.report.tables import Table, TableCell


class AlongTraining:
    """Entries whose end tasks were asked inside the stages, each the mean over its runs.

    Args:
        titles: entry → its title, in the order of the page.
        cells: the grid's results.
        own: held-out sets and end tasks of the domains that are learnt.
    """

    def __init__(self, titles: Mapping[str, str], cells: Sequence[CellResult], own: Sequence[str]) -> None:
        self.moments: dict[str, list[Waypoint]] = {}
        for entry, title in titles.items():
            each = [[Waypoint(p.tokens, p.scores) for p in c.points] for c in cells if c.entry == entry]
            if asked := mean_of(each):
                self.moments[title] = asked
        ends = next(iter(self.moments.values()), None)
        self.axes: list[Axes] = axes(ends[-1].scores, own) if ends else []

    def plates(self) -> list[Plate]:
        """A picture for each metric of what is learnt."""
        first = list(self.moments.items())[:SERIES]
        labels, asked = tuple(title for title, _ in first), tuple(tuple(found) for _, found in first)
        return [plate for own in self.axes for plate in draw("along", Along(own, labels, asked))]

    def tables(self) -> list[Table]:
        """One table, or none: the base model, and every entry at its end."""
        if not self.axes:
            return []
        metric, kept = self.axes[0].kept
        columns = [(own.learnt[0], name) for own in self.axes for name in own.learnt[1]]
        columns += [(metric, name) for name in kept]
        header = [
            f"{METRICS[name].title}: {column} {'↑' if METRICS[name].higher_is_better else '↓'}"
            for name, column in columns
        ]
        base = next(iter(self.moments.values()))[0]
        rows = {"Base model": base} | {title: found[-1] for title, found in self.moments.items()}

        def cells(found: Waypoint) -> tuple[TableCell, ...]:
            shown = [_shown(name, found.scores.get(name, {}).get(column)) for name, column in columns]
            lost = next(iter(self.axes[0].points([base, found])[1:]), None)
            mean = [found.scores.get(metric, {}).get(name) for name in kept]
            whole = None if None in mean else sum(value or 0.0 for value in mean) / len(mean)
            return (*shown, _shown(metric, whole), _shown(metric, None if lost is None else lost[0], signed=True))

        return [
            Table(
                "End tasks that are asked as they are",
                ("Method", *header, "Mean of those of no domain ↑", "Forgotten of it ↓"),
                tuple((title, cells(found)) for title, found in rows.items()),
                "At the end of the stream, means over runs. Shares in percent. Forgotten: the base model's mean less "
                "that at the end.",
            )
        ]


def _shown(metric: str, value: float | None, signed: bool = False) -> TableCell:
    fraction = METRICS[metric].unit == "fraction"
    return TableCell(
        fmt.fixed(None if value is None else value * (100 if fraction else 1), 2 if fraction else 4, signed)
    )
