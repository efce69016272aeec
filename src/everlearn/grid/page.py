"""Show the results of a grid: on a terminal, as a page, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from rich.console import RenderableType

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison, compare_pools
from everlearn.comparison.recipe_differences import Differences
from everlearn.comparison.runs import Run
from everlearn.errors import RunError
from everlearn.evaluation.build import ONE_FINE_TUNING
from everlearn.grid.columns import ALONG, BITS, STREAM, NumberColumn, known, of_metric
from everlearn.grid.during_training import AlongTraining
from everlearn.grid.grid import State, completeness
from everlearn.grid.identity import described
from everlearn.grid.numbers import parts
from everlearn.grid.parts import GridContents, parts_of
from everlearn.grid.relative_to_plain import compute_of, shares_of, shares_table
from everlearn.grid.row_labels import relabelled
from everlearn.grid.rows import in_order
from everlearn.grid.summary import Line, plain_or_first, summarise
from everlearn.grid.swept_options import SweptOption, swept
from everlearn.grid.template import GridTemplate, Metric
from everlearn.methods.sequential import PLAIN
from everlearn.report import verdict
from everlearn.report.drawing import legend_of
from everlearn.report.figures import Plate, draw
from everlearn.report.figures.dots import Dots
from everlearn.report.figures.frontiers import Frontiers
from everlearn.report.figures.swept import Swept
from everlearn.report.figures.tradeoff import Tradeoff, TradeoffPoint
from everlearn.report.html import render, top_figure
from everlearn.report.tables import Table, TableCell, csv_text, for_markdown, for_terminal, latex_table
from everlearn.report.verdict import paragraphs
from everlearn.version import __version__

_NOTES = {
    ONE_FINE_TUNING: "End tasks were fine-tuned once in each run, with the same seed in all: intervals are over runs, "
    "and do not include other seeds of the fine-tuning."
}
"""Note of a single run → its wording for a grid."""

_ABOUT_STREAM = (
    "Percent. With R[i, j] the accuracy on task j after i of T tasks, and R[0, j] that of the base model. AP: "
    "mean of R[T, j]; micro: over all test examples together. BWT: Σ (R[T, j] − R[j, j]); forgetting is its "
    "negative, its max form Σ (max over i ≥ j of R[i, j] − R[T, j]). FWT: Σ (R[j−1, j] − R[0, j]). The sums "
    "have T − 1 terms and are divided by T − 1 (as papers define them) or by T (as some released code does)."
)
_ABOUT_BITS = (
    "Means over domains; drift is of general text. Learnt is relative to the base model, forgotten to the score right "
    "after a domain's own stage."
)
_ABOUT_COSTS = (
    "Compute and training time are relative to plain training. Compute is counted in forward and backward passes, in "
    "the steps and outside of them (such as measuring importance). Training time is the measured median over runs, "
    "which other work on the machine makes longer. Parameters: trainable ones, for each domain. Extra passes: forward "
    "and backward, in units of one pass over the batch; a forward pass alone counts a third. If they grow with the "
    "number of domains, those of the second domain are given."
)
_ABOUT_DIFFERENCES = (
    "Runs of the same order and seed are paired; with fewer than two pairs, all runs of both rows are treated as "
    "independent samples of equal variance. In brackets: 95 % intervals from Student's t over runs; p comes from the "
    "same t and is below 0.05 exactly where the interval excludes 0. Where there is no difference, p is still below "
    "0.05 in one of twenty comparisons, by chance."
)


class GridPage:
    """The tables, figures and notes that show the results of a grid, in several output formats.

    Args:
        template: the grid's template.
        cells: the results.
        reference: row with which the others are compared. Default: plain training, else the base model, else the
            first row.
        shown: rows to show; all if empty. A row that is not shown can still be the reference.
        states: state of every requested cell; empty if unknown.
        folders: cell → folder of its run, where there is one. If given, the page begins with the verdict and the first
            figure of a report on the rows; single runs in folders are compared example by example.

    Raises:
        RunError: there are no cells, the reference has no cell, or no row in `shown` has a cell.
    """

    ENDINGS = ("html", "md", "tex", "csv", "json")

    def __init__(
        self,
        template: GridTemplate,
        cells: Sequence[Run],
        reference: str | None = None,
        shown: Sequence[str] = (),
        states: Sequence[State] = (),
        folders: Mapping[str, Path] | None = None,
    ) -> None:
        self.states = states
        self.titles = {cell.grid.row: cell.grid.title for cell in cells}
        cells = relabelled(cells)
        rows = set(shown or (cell.grid.row for cell in cells))
        ordered = sorted(cells, key=lambda cell: cell.grid.row not in rows)  # the first of them may be the reference
        lines = {line.entry: line for line in summarise(ordered, reference)}
        if rows.isdisjoint(lines):
            row_names = " or ".join(f"`{name}`" for name in shown)
            raise RunError(f"There are no results of {row_names} (`--methods`), only of {', '.join(lines)}.")
        self.template, self.cells = template, [cell for cell in cells if cell.grid.row in rows]
        self.reference = lines[reference or plain_or_first(lines)]
        self.lines = [lines[entry] for entry in in_order(rows & lines.keys(), template)]
        if template.ranked:
            self.lines.sort(key=_rank)
        self.comparison = None if folders is None else self._compared(folders)
        self.plain = next((line for line in self.lines if line.entry == PLAIN), None)
        scored = (parts(cell, each) for line in self.lines for cell in line.runs for each in get_args(Metric))
        self.tasks = list(dict.fromkeys(task for each in scored for task in each))
        self.metrics = [metric for metric in template.metrics if any(metric in line.numbers for line in self.lines)]
        self.along = AlongTraining({line.entry: line.label for line in self.lines}, self.cells)
        self.notes = list(dict.fromkeys(_NOTES.get(note, note) for cell in self.cells for note in cell.notes))
        self.parts = parts_of(GridContents(template, self.cells, self.lines, self.tasks, bool(self.along.axes)))

    def _compared(self, folders: Mapping[str, Path]) -> Comparison | None:
        """Compare the rows that learn the domains in turn; what differs between rows is what the grid is about."""
        streams = [line for line in self.lines if all(cell.grid.order is not None for cell in line.runs)]
        streams.sort(key=lambda line: line.entry != self.reference.entry)
        pools = [
            replace(line, runs=tuple(replace(cell, folder=folders.get(cell.name)) for cell in line.runs))
            for line in streams
        ]
        return compare_pools(pools, Differences()) if pools else None

    def tables(self) -> list[Table]:
        """Return all tables, end tasks first."""
        tables = [self._tasks_table(metric) for metric in self.metrics]
        # Tasks that are scored only after their own stage and at the end have no forward transfer.
        needed = "accuracy_bwt" if self.template.metrics == ("accuracy",) else "accuracy_fwt"
        if any(needed in line.numbers for line in self.lines):
            tables.append(
                self._table("End tasks along the stream (accuracy)", known(STREAM, self.lines), _ABOUT_STREAM)
            )
        tables += self.along.tables()
        tables.append(self._table("Held-out text (bits per byte)", BITS, _ABOUT_BITS))
        if any(line.differences for line in self.lines):
            tables.append(self._difference_table())
        if self.plain is not None and len(self.lines) > 1:
            tables += shares_table(self.lines, self.plain)
        tables += [table for part in self.parts for table in part.tables()]
        tables.append(self._facts_table())
        titles = tuple((line.label, (TableCell(self.titles[line.entry]),)) for line in self.lines)
        if any(label != complete.text for label, (complete,) in titles):
            tables.append(Table("The rows with everything that was set", ("Row", "Set"), titles))
        tables += [table for part in self.parts for table in part.last_tables()]
        return [table for table in tables if any(cell.text != fmt.MISSING for _, row in table.rows for cell in row)]

    @property
    def _columns(self) -> list[NumberColumn]:
        """Return the main numbers of the page: level and forgetting of end tasks, and held-out text."""
        return [*(each for pair in zip(*map(of_metric, self.metrics), strict=True) for each in pair), *ALONG, *BITS]

    def _table(self, title: str, columns: Sequence[NumberColumn], caption: str) -> Table:
        """Return a table with a column for each number."""
        rows = tuple((line.label, tuple(column.cell(line) for column in columns)) for line in self.lines)
        header = ("Method", *(column.heading for column in columns))
        return Table(title, header, rows, f"{caption} {self._intervals}")

    def _tasks_table(self, metric: Metric) -> Table:
        level, forgetting = of_metric(metric)
        each = [NumberColumn(f"{metric}/{task}", task) for task in self.tasks]
        columns = [*each, replace(level, title="Average"), replace(forgetting, title="Forgetting")]
        caption = "Percent. Forgetting: (1/(T−1)) Σ (A_kk − A_Tk); below 0, later domains helped."
        if metric == "f1" and any(parts(cell, "f1") != parts(cell, "macro_f1") for cell in self.cells):
            caption += " F1 is macro-F1, or micro-F1 for tasks that ask for it (it equals their accuracy)."
        return self._table(f"{level.title} of end tasks after the last domain", columns, caption)

    @property
    def _intervals(self) -> str:
        """Say what the intervals in brackets are, for captions."""
        counts = sorted({len(line.runs) for line in self.lines if len(line.runs) > 1})
        if not counts:
            return "One run each, so there are no intervals."
        runs = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return (
            f"In brackets: 95 % intervals, Student's t over the {runs} runs of a row (orders × seeds); none where "
            "there is one run."
        )

    def _difference_table(self) -> Table:
        columns = [each for each in self._columns if any(each.number in line.differences for line in self.lines)]
        return Table(
            f"Difference to {self.reference.label}",
            ("Method", *(f"{column.heading} ({column.unit})" for column in columns)),
            tuple(
                (line.label, tuple(column.difference_cell(line) for column in columns))
                for line in self.lines
                if line is not self.reference
            ),
            _ABOUT_DIFFERENCES if any(len(line.runs) > 1 for line in self.lines) else self._intervals,
        )

    def _facts_table(self) -> Table:
        plain = self.plain
        seconds = plain.seconds if plain is not None else 0.0
        further = [column for part in self.parts for column in part.columns()]

        def cells(line: Line) -> list[TableCell]:
            facts = line.facts
            return [
                TableCell(str(len(line.runs))),
                TableCell("yes" if facts.domain_id_at_test else "no"),
                TableCell("yes" if facts.old_data else "no"),
                TableCell(fmt.integer(facts.parameters)),
                TableCell(f"{facts.passes_per_step:.3g}"),
                TableCell(_times(None if plain is None else compute_of(line, plain))),
                TableCell(_times(line.seconds / seconds if seconds and line.seconds else None)),
                TableCell(fmt.integer(line.tokens)),
                *(TableCell(column.shown.get(line.entry, fmt.MISSING)) for column in further),
            ]

        header = ("Method", "Runs", "Domain id at test", "Old data kept", "Parameters added")
        return Table(
            "What each takes",
            (
                *(*header, "Extra passes a step", "Compute", "Training time", "Tokens learnt from"),
                *(column.title for column in further),
            ),
            tuple((line.label, tuple(cells(line))) for line in self.lines),
            _ABOUT_COSTS + "".join(f" {column.caption}" for column in further),
        )

    # -- outputs ----------------------------------------------------------------------------------------------

    def written(self, ending: str) -> str:
        """Return the content of a file with one of the extensions :data:`ENDINGS`."""
        writers = (self.page, self.markdown, self.latex, self.csv, self.json)
        return dict(zip(self.ENDINGS, writers, strict=True))[ending]()

    def terminal(self) -> RenderableType:
        """Return the page for a terminal; print it with a rich console."""
        return for_terminal(self.tables(), self.notes, before=self._opening())

    def markdown(self) -> str:
        """Return the verdict, pipe tables and the notes."""
        return for_markdown(self.tables(), self.notes, before=self._opening())

    def latex(self) -> str:
        """Return the tables for ``booktabs``."""
        return "\n".join(latex_table(table) for table in self.tables())

    def csv(self) -> str:
        """Return one number of one cell a line."""
        rows = (
            (line.entry, *unit, name, value)
            for line in self.lines
            for unit, numbers in line.rows.items()
            for name, value in numbers.items()
        )
        return csv_text(("entry", "order", "seed", "number", "value"), rows)

    def to_json(self) -> dict[str, Any]:
        """Return the page as JSON data."""
        return {
            "suite": self.template.name,
            "reference": self.reference.entry,
            "settings": self.cells[0].grid.settings,
            "lines": [line.to_json() for line in self.lines],
            "notes": self.notes,
            **({"complete": completeness(self.states), "cells": [vars(s) for s in self.states]} if self.states else {}),
            **({"verdict": verdict(self.comparison)} if self.comparison is not None else {}),
        }

    def _opening(self) -> list[str]:
        """Return the text before the tables: the verdict on the streams, and which cells are missing."""
        judged = [" ".join(verdict(self.comparison))] if self.comparison is not None else []
        return [*judged, *([completeness(self.states)] if self._incomplete else [])]

    @property
    def _incomplete(self) -> bool:
        return any(state.state != "done" for state in self.states)

    def json(self) -> str:
        """Return the page as JSON."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def page(self) -> str:
        """Return the page as one self-contained HTML file."""
        of_tasks = list(map(of_metric, self.metrics))
        plates = [plate for level, _ in of_tasks for plate in self._dots(level, difference=True)]
        plates += [plate for _, forgetting in of_tasks[:1] for plate in self._dots(forgetting)]
        plates += [plate for each in BITS if each.number == "bits_forgotten" for plate in self._dots(each)]
        plates += [plate for part in self.parts for plate in part.plates()]
        ordered = {cell.grid.order: cell.domains for cell in self.cells}
        orders = {order: domains for order, domains in ordered.items() if order is not None}
        seeds = sorted({seed for cell in self.cells if (seed := cell.grid.seed) is not None})
        learnt = len(self.cells[0].domains)
        return render(
            "grid.html.jinja",
            title=f"{self.template.name}: {len(self.lines)} ways to learn {learnt} domain{'s' * (learnt != 1)}",
            version=__version__,
            verdict=[] if self.comparison is None else paragraphs(self.comparison),
            incomplete=completeness(self.states) if self._incomplete else "",
            facts=[
                (
                    "Orders",
                    "; ".join(f"{self.template.order_title(n)}: {' → '.join(orders[n])}" for n in sorted(orders))
                    or "–",
                ),
                ("Seeds", ", ".join(map(str, seeds)) or "–"),
                ("Settings", ", ".join(f"{key} {value}" for key, value in described(self.cells[0].grid.settings))),
            ],
            tables=self.tables(),
            top=[*(self._tradeoff() if self.comparison is None else top_figure(self.comparison)), *self._frontiers()],
            swept=[
                (each.option, legend_of(family.label for family in each.families), self._swept(each))
                for each in swept(self.lines)
            ],
            along=(self.along.legend(), self.along.plates()),
            figures=plates,
            notes=self.notes,
            papers=[(line.label, line.facts.paper) for line in self.lines if line.facts.paper.startswith("https://")],
        )

    def _tradeoff(self) -> list[Plate]:
        """Draw learning against forgetting on held-out text, the best at the end first."""
        end, learnt, forgotten, _ = BITS
        measured = [line for line in self.lines if end.number in line.numbers]
        ranked = sorted(measured, key=lambda line: line.numbers[end.number].value or 0.0)
        runs = tuple(
            TradeoffPoint(line.label, learnt.estimate(line), forgotten.estimate(line), line is ranked[0])
            for line in ranked
        )
        return draw("tradeoff", Tradeoff(runs, "bits per byte", ranked=False))

    def _frontiers(self) -> list[Plate]:
        """Draw the swept rows as shares of plain training's learning, forgetting and drift."""
        return [
            plate
            for name, lost in (("bits_forgotten", "forgetting left"), ("bits_drift", "general drift left"))
            if self.plain is not None
            for plate in draw("frontiers", Frontiers(shares_of(swept(self.lines), self.plain, name), lost))
        ]

    def _swept(self, along: SweptOption) -> list[Plate]:
        """Draw the main numbers against the values of an option."""
        plates = []
        own = [line for family in along.families for line in family.lines.values()]
        for column in known(self._columns, own):
            families = [
                [None if line is None else column.estimate(line) for line in map(family.lines.get, along.values)]
                for family in along.families
            ]
            plates += draw(
                "swept",
                Swept(
                    along.option,
                    column.axis,
                    along.values,
                    families,
                    [family.label for family in along.families],
                    f"{column.axis} by {along.option}.",
                    None if self.reference in own else column.estimate(self.reference).value,
                    self.reference.label,
                    zero=column.change,
                ),
            )
        return plates

    def _dots(self, column: NumberColumn, difference: bool = False) -> list[Plate]:
        """Draw a number of each row, or its difference to the reference, as dots with intervals."""
        of, unit = (column.difference, f"{column.title} minus {self.reference.label} ({column.unit})")
        if not difference:
            of, unit = column.estimate, column.axis
        rows = {line.label: estimate for line in self.lines if (estimate := of(line)).value is not None}
        caption = f"{unit}.{fmt.marked_intervals('Lines', rows.values())}"
        return draw("dots", Dots(unit, list(rows), [list(rows.values())], caption))


def status_table(states: Sequence[State]) -> Table:
    """Return the runs that are not done, under a sentence that says how many are."""
    rows = [(each.cell, (TableCell(each.state), TableCell(each.reason))) for each in states if each.state != "done"]
    return Table(completeness(states), ("Run", "State", "Reason"), tuple(rows))


def _rank(line: Line) -> float:
    """Return the sort key of a row: bits per byte at the end or, without held-out text, the negative task score."""
    end = [line.numbers[name].value for name in ("bits", "f1", "accuracy") if name in line.numbers][:1]
    return math.inf if not end or end[0] is None else end[0] if "bits" in line.numbers else -end[0]


def _times(ratio: float | None) -> str:
    return fmt.MISSING if ratio is None else f"{ratio:.2f}×"
