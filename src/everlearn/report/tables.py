"""Write a comparison as tables for a terminal, Markdown, LaTeX, CSV and JSON, with names escaped for each."""

from __future__ import annotations

import csv as csv_module
import io
import json as json_module
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from everlearn.comparison import formatting as fmt
from everlearn.comparison.comparison import Comparison
from everlearn.comparison.measures import Measure
from everlearn.evaluation.estimate import Estimate, number
from everlearn.evaluation.statistics import FEW
from everlearn.report.drawing import NAMED, SERIES
from everlearn.report.verdict import verdict

BRIEF = 240
"""Number of cells of a table above which intervals are left out; they are in results.json."""


_BESIDE, _HEADING = 4, 26
"""Maximum number of columns on a phone, and maximum characters of their headings."""
_LINES = 150
"""Maximum number of lines of a table on a phone; a longer one keeps its columns and scrolls sideways."""


@dataclass(frozen=True)
class TableCell:
    """A cell: a text, a smaller text after it, and whether it is clearly the best of its column."""

    text: str
    detail: str = ""
    best: bool = False
    order: float | None = None
    """Number by which the column is sorted if the text does not give it (``1.45 GB``, ``2 min 10 s``)."""


BOLD = "Bold: the interval of the difference to every other run excludes zero."


def legend_of_bold(rows: Iterable[tuple[str, Iterable[TableCell]]]) -> str:
    """Return what bold numbers are, for the caption of a table that has some."""
    return BOLD if any(cell.best for _, cells in rows for cell in cells) else ""


@dataclass(frozen=True)
class Table:
    """A table of text; the first column names the rows."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, tuple[TableCell, ...]], ...]
    caption: str = ""
    first: tuple[int, ...] = ()
    """Columns that a phone shows as columns; the others follow in each row, each after its name."""

    @property
    def narrow(self) -> tuple[int, ...] | None:
        """Return the columns that a phone shows as columns; None if it must scroll to show so many cells.

        Four columns with short headings fit side by side. A wider table is shown as a card for each row, with its
        columns as lines, if it is short enough.
        """
        columns = tuple(range(1, len(self.header)))
        if self.first:
            return self.first
        if len(columns) <= _BESIDE and all(len(self.header[place]) <= _HEADING for place in columns):
            return columns
        return () if len(self.rows) * len(columns) <= _LINES else None


def estimate_cell(estimate: Estimate, places: int = 3, signed: bool = False, best: bool = False) -> TableCell:
    """Make the cell of an estimate: its value, with its interval after it."""
    return TableCell(fmt.fixed(estimate.value, places, signed), fmt.interval(estimate, places, signed), best)


def cell(estimate: Estimate, measure: Measure, best: bool = False, signed: bool | None = None) -> TableCell:
    """Make the cell of an estimate, with the measure's decimals."""
    return estimate_cell(estimate, measure.places, measure.quantity.signed if signed is None else signed, best)


def heading(measure: Measure) -> str:
    """Return a heading such as ``Forgotten ↓ (bits/byte)``; the arrow points to the better side."""
    unit = f" ({measure.unit})" if measure.unit else ""
    return f"{measure.title}\u00a0{'↑' if measure.higher_is_better else '↓'}{unit}"


def headline_table(comparison: Comparison) -> Table:
    """Make the first table: runs, the best first × gain at the end, learnt, forgotten, general drift, end tasks.

    For existing models without a stream it has the models and their scores.
    """
    if not comparison.headline:
        return models_table(comparison)
    measures, several = comparison.headline, any(len(pool.runs) > 1 for pool in comparison.pools)
    rows: list[tuple[str, tuple[TableCell, ...]]] = []
    for pool in comparison.ranking:
        cells = [cell(m.estimates[pool], m, m.best == pool) for m in measures]
        seeds = [TableCell(str(len(comparison.pools[pool].runs)))] if several else []
        rank = f"{len(rows) + 1}. " if len(comparison.pools) > NAMED else ""
        rows.append((f"{rank}{comparison.labels[pool]}", (*seeds, *cells)))
    caption = f"Gain: against the base model. {brackets(comparison)} Arrows point to the better side."
    if len(comparison.pools) > 1:
        caption += f" {BOLD}"
    if comparison.differing:
        caption += " Runs with different data, steps or tokens are never bold."
    header = ("Run", *(["Seeds"] if several else []), *map(heading, measures))
    begin = len(header) - len(measures)
    return Table("Result", header, tuple(rows), caption, tuple(range(begin, min(begin + _BESIDE, len(header)))))


def brackets(comparison: Comparison) -> str:
    """Say what the intervals of a table of pools are."""
    counts = sorted({len(pool.runs) for pool in comparison.pools})
    seeds = f"{counts[-1]}" if len(set(counts) - {1}) == 1 else f"{max(2, counts[0])} to {counts[-1]}"
    over_runs = f"Student's t over {seeds} seeds"
    over_text = f"a bootstrap over the scored documents or examples, or Student's t where they are fewer than {FEW}"
    if counts == [1]:
        return f"In brackets: 95 % intervals, {over_text}."
    if counts[0] > 1:
        return f"In brackets: 95 % intervals, {over_runs}."
    return f"In brackets: 95 % intervals, {over_runs}; of one seed {over_text}."


def models_table(comparison: Comparison) -> Table:
    """Make a table of checkpoints × scores under the main metric of text and the first of end tasks."""
    header, columns = ["Model"], []
    for metric in [m for m in (comparison.text_metric, *comparison.task_metrics[:1]) if m is not None]:
        each = comparison.matrices(metric)
        places = fmt.decimals(score.value for matrix in each for score in matrix.scores.values())
        for column in dict.fromkeys(column for matrix in each for column in matrix.columns):
            unit = each[0].printed_unit or each[0].title.lower()
            header.append(f"{column}\u00a0{'↑' if each[0].higher_is_better else '↓'} ({unit})")
            columns.append((metric, column, places))
    rows = []
    for run, label in [(run, pool.label) for pool in comparison.pools for run in pool.runs]:
        names = max((matrix.rows for matrix in run.matrices.values()), key=len, default=[])
        for row, name in enumerate(names):
            scores = [(run.matrices[metric].cell(row, column), places) for metric, column, places in columns]
            cells = tuple(estimate_cell(score, places) for score, places in scores)
            rows.append((name if len(comparison.runs) == 1 else f"{label}: {name}", cells))
    return Table("Scores", tuple(header), tuple(rows), "In brackets: 95 % intervals. Arrows point to the better side.")


def difference_table(comparison: Comparison) -> Table:
    """Make a table of the differences of every other run to the first one."""
    measures, reference = comparison.headline, comparison.labels[0]
    rows = tuple(
        (comparison.labels[pool], tuple(cell(m.difference(pool), m, signed=True) for m in measures))
        for pool in comparison.ranking
        if pool
    )
    if len(comparison.runs) > len(comparison.pools):
        caption = (
            "In brackets: 95 % intervals from Student's t over runs, in pairs of the same seed; with fewer than two "
            "pairs, all runs of both are treated as independent samples of equal variance."
        )
    elif all(measure.paired for measure in measures):
        caption = "Differences are resampled in pairs, on the same text for all runs."
    else:
        caption = "Differences take the runs' intervals as independent, where they cannot be paired by text."
    if comparison.differing:
        caption += " The runs differ in data, steps or tokens: see what differs."
    return Table(f"Difference to {reference}", ("Run", *map(heading, measures)), rows, caption)


def differing_table(comparison: Comparison) -> Table | None:
    """Make a table of the settings that differ between the runs, apart from methods and seeds."""
    if not comparison.unlike:
        return None
    rows = tuple(
        (key, tuple(TableCell(fmt.shorten(values[pool], 60)) for pool in comparison.ranking))
        for key, values in {**comparison.differing, **comparison.unlike.configuration}.items()
    )
    header = ("Setting", *(comparison.labels[pool] for pool in comparison.ranking))
    return Table("What differs besides the methods", header, rows)


def column_table(measure: Measure, comparison: Comparison) -> Table:
    """Make a table of one measure: domains (or tasks) × the first runs of the ranking, with the mean."""
    shown = comparison.ranking[:SERIES]
    brief = len(measure.columns) * len(shown) > BRIEF

    def cells(measure: Measure) -> tuple[TableCell, ...]:
        cells_of_pools = [cell(measure.estimates[pool], measure, not brief and measure.best == pool) for pool in shown]
        return tuple(TableCell(each.text) for each in cells_of_pools) if brief else tuple(cells_of_pools)

    rows = [(column, cells(measure.column(column))) for column in measure.columns]
    if len(rows) > 1:
        rows.append(("mean", cells(replace(measure, samples={}) if brief else measure)))
    header = ("Domain", *(comparison.labels[pool] for pool in shown))
    return Table(heading(measure), header, tuple(rows), legend_of_bold(rows))


def further_tables(comparison: Comparison) -> list[Table]:
    """Make a table for each metric of its quantities that the first table lacks × the first runs of the ranking."""
    shown = comparison.ranking[:SERIES]
    tables = []
    for metric, measures in comparison.measures.items():
        rows = [
            (heading(each), tuple(cell(each.estimates[pool], each, each.best == pool) for pool in shown))
            for each in measures
            if not any(each is shown_first for shown_first in comparison.headline)
        ]
        if rows and comparison.streams:
            title = comparison.matrices(metric)[0].title
            header = ("Quantity", *(comparison.labels[pool] for pool in shown))
            tables.append(Table(f"Further quantities: {title}", header, tuple(rows), legend_of_bold(rows)))
    return tables


def all_tables(comparison: Comparison) -> list[Table]:
    """Return the first table, the differences, each measure per domain, and the end tasks."""
    tables = [headline_table(comparison)]
    if len(comparison.pools) > 1 and comparison.headline:
        tables.append(difference_table(comparison))
    differing = differing_table(comparison)
    tables += [differing] if differing else []
    return [*tables, *(column_table(m, comparison) for m in comparison.headline if len(m.columns) > 1)]


def terminal(comparison: Comparison) -> RenderableType:
    """Return the tables for a terminal; print them with a rich console."""
    return for_terminal(all_tables(comparison), comparison.notes, after=[" ".join(verdict(comparison))])


def for_terminal(
    tables: Iterable[Table], notes: Iterable[str], before: Iterable[str] = (), after: Iterable[str] = ()
) -> RenderableType:
    """Return tables for a terminal, with paragraphs before and after them, and notes at the end."""
    opening: list[RenderableType] = [part for text in before for part in (Text(text), Text(""))]
    shown = [part for table in tables for part in (terminal_table(table), Text(""))]
    return Group(*opening, *shown, *map(Text, after), *(Text(f"Note: {note}") for note in notes))


def terminal_table(table: Table) -> RichTable:
    """Return one table for a terminal."""
    # Text rather than markup, since a run may be named "[bold]".
    shown = RichTable(title=Text(table.title), caption=Text(table.caption), title_justify="left")
    for position, name in enumerate(table.header):
        shown.add_column(Text(name), justify="right" if position else "left", overflow="fold")
    for name, cells in table.rows:
        shown.add_row(Text(name), *(_rich(entry) for entry in cells))
    return shown


def _rich(entry: TableCell) -> Text:
    text = Text(entry.text, style="bold" if entry.best else "")
    return text.append(f"\n{entry.detail}", style="dim") if entry.detail else text


def escape_markdown(text: str) -> str:
    """Escape a name for GitHub-flavoured Markdown, also within a table."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)
    # At the start of a line these would begin a heading, a list or a rule.
    return re.sub(r"^(\d*)([#+=.)-])", r"\1\\\2", text)


def markdown(comparison: Comparison) -> str:
    """Return the tables as pipe tables, then the verdict and the notes."""
    return for_markdown(all_tables(comparison), comparison.notes, after=[" ".join(verdict(comparison))])


def for_markdown(
    tables: Iterable[Table], notes: Iterable[str], before: Iterable[str] = (), after: Iterable[str] = ()
) -> str:
    """Return pipe tables, with paragraphs before and after them, and notes at the end as a list."""
    parts = [*map(escape_markdown, before), *(markdown_table(table, level=3) for table in tables)]
    parts += map(escape_markdown, after)
    listed = "\n".join(f"- {escape_markdown(note)}" for note in notes)
    return "\n\n".join([*parts, listed] if listed else parts) + "\n"


def markdown_table(table: Table, level: int) -> str:
    """Return one pipe table under a heading of this level."""
    lines = [f"{'#' * level} {escape_markdown(table.title)}", "", _pipe(list(map(escape_markdown, table.header)))]
    lines.append(_pipe(["---", *["---:"] * (len(table.header) - 1)]))
    for name, cells in table.rows:
        lines.append(_pipe([escape_markdown(name), *(_markdown_cell(entry) for entry in cells)]))
    return "\n".join([*lines, "", escape_markdown(table.caption)] if table.caption else lines)


def _pipe(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(entry: TableCell) -> str:
    # Numbers need no escaping.
    return f"{f'**{entry.text}**' if entry.best else entry.text} {entry.detail}".strip()


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # A bracket or a star at the start of a row would be an argument of the \\ before it.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "\u2212": "$-$",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def escape_latex(text: str) -> str:
    """Escape a name for LaTeX (UTF-8, T1 fonts)."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split())).replace("--", "-{}-")


def latex(comparison: Comparison) -> str:
    """Return the tables for ``booktabs``, each in its own ``table`` environment."""
    return "\n".join(latex_table(table) for table in all_tables(comparison))


def latex_table(table: Table) -> str:
    """Return one table in its own environment."""
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(f'{table.title}. {table.caption}'.strip())}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        r"\toprule",
        " & ".join(map(escape_latex, table.header)) + r" \\",
        r"\midrule",
    ]
    for name, cells in table.rows:
        lines.append(" & ".join([escape_latex(name), *(_latex_cell(entry) for entry in cells)]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex_cell(entry: TableCell) -> str:
    text = rf"\textbf{{{escape_latex(entry.text)}}}" if entry.best else escape_latex(entry.text)
    return rf"{text} {{\scriptsize {escape_latex(entry.detail)}}}" if entry.detail else text


def csv(comparison: Comparison) -> str:
    """Return one estimate a line: run, metric, measure, column, value, low, high; an absent number is "–"."""
    return csv_text(_COLUMNS, ([fmt.MISSING if x is None else x for x in row] for row in _rows(comparison)))


def csv_text(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV, in which no text is a formula; None is an empty field."""
    file = io.StringIO()
    writer = csv_module.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(fmt.no_formula, row) for row in rows)
    return file.getvalue()


_COLUMNS = ("run", "metric", "measure", "column", "value", "low", "high")


def _rows(comparison: Comparison) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for metric, measures in comparison.measures.items():
        for measure in measures:
            for run, label in enumerate(comparison.labels):
                columns = {column: estimates[run] for column, estimates in measure.columns.items()}
                for column, e in (
                    {**columns, "mean": measure.estimates[run]} if measure.quantity.averaged else columns
                ).items():
                    rows.append((label, metric, measure.quantity.key, column, e.value, e.low, e.high))
    for pool in comparison.pools:
        for run_of_pool in pool.runs:
            label = pool.label if len(pool.runs) == 1 else f"{pool.label}, seed {run_of_pool.results.get('seed')}"
            for key, value in run_of_pool.cost.items():
                if number(value) is not None:
                    rows.append((label, "cost", key, "run", value, None, None))
    return rows


def json(comparison: Comparison) -> str:
    """Return all numbers of the tables as JSON."""
    return json_module.dumps(as_data(comparison), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Return the content of :func:`json`."""
    rows = [dict(zip(_COLUMNS, row, strict=True)) for row in _rows(comparison)]
    differences = [
        {
            "run": comparison.labels[run],
            "reference": comparison.labels[0],
            "metric": measure.metric,
            "measure": measure.quantity.key,
            "title": measure.title,
            "unit": measure.unit,
            "higher_is_better": measure.higher_is_better,
            **vars(measure.difference(run)),
            "paired": measure.paired,
            "judgement": "withheld"
            if (0, run) in measure.unequal
            else {1: "better", -1: "worse", 0: "unclear", None: "unknown"}[measure.judge(run)],
        }
        for measure in comparison.headline
        for run in range(1, len(comparison.pools))
    ]
    return {
        "runs": [
            {
                "label": pool.label,
                "name": pool.runs[0].name,
                "methods": pool.runs[0].results.get("methods") or [],
                "seed": pool.runs[0].results.get("seed"),
                "seeds": [run.results.get("seed") for run in pool.runs],
                "names": [run.name for run in pool.runs],
            }
            for pool in comparison.pools
        ],
        "ranking": [comparison.labels[pool] for pool in comparison.ranking],
        "differing": {key: dict(zip(comparison.labels, v, strict=True)) for key, v in comparison.differing.items()},
        "configuration": {
            key: dict(zip(comparison.labels, v, strict=True)) for key, v in comparison.unlike.configuration.items()
        },
        "tolerate": {
            "general_drift": comparison.tolerance,
            "unit": "bits/byte",
            "runs": {label: comparison.side(pool) for pool, label in enumerate(comparison.labels)},
        },
        "domains": comparison.domains,
        "general": comparison.general,
        "metrics": comparison.metrics,
        "estimates": rows,
        "differences": differences,
        "verdict": verdict(comparison),
        "notes": comparison.notes,
    }
