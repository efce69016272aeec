"""Write the tables and violins of docs/results/scenarios.md, and the record of content tokens and rows beside them.

    python benchmarks/scenarios/page.py [runs/sweep-scenarios]

reads results/ (cells of the sweeps in recipe.yaml) and, where the runs are there, the score files of `sequential` and
the models of its first seed (`--keep`), of which it writes record.json. Without them it reads record.json. Text above
the first table of the page stays as it is there.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from everlearn import files
from everlearn.diagnostics.analyses.activations import sections
from everlearn.diagnostics.row_activations import ALL, alike, looked_at, threshold_of
from everlearn.evaluation import Cell, set_path
from everlearn.grid.archive import find_cells
from everlearn.learner import ContinualLearner
from everlearn.report.figures.registry import standalone
from everlearn.report.tables import Table, TableCell, markdown_table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "results" / "scenarios.md"
RECORD = HERE / "record.json"
BEGIN = "<!-- measured -->"
FIRST, SECOND, GENERAL = TEXTS = ("papers", "restaurants", "general")
STAGES = ("base", FIRST, SECOND)
PLAIN = "sequential"
CONSTANT = "sequential-lr_scheduler_typeconstant-warmup_steps0-learning_rate0.0001"
SCENARIOS = {
    "none": "base model",
    "separate": "base → A, base → B",
    PLAIN: "A → B",
    "cumulative": "A → A + B",
    "pool": "A + B",
    "merged": "mean of the two of base → A, base → B",
}
WARMING = {
    PLAIN: "warm-up and cosine in each domain",
    "sequential-warmup_steps0": "cosine in each domain, no warm-up",
    "infinite_schedule": "warm-up in the first domain, then constant at a tenth",
    CONSTANT: "constant at a tenth, no warm-up",
}
"""Name of a row → what is trained."""
BLOCKS = 64
Scores = Mapping[str, float | None]
NUMBERS = {
    "learnt": f"A: {FIRST}, after A ↓",
    FIRST: f"A: {FIRST}, at the end ↓",
    SECOND: f"B: {SECOND}, at the end ↓",
    "mean": "mean of A and B, at the end ↓",
    GENERAL: "Wikipedia, at the end ↓",
}


def scores(cell: Mapping[str, Any]) -> Scores:
    """Return the bits per byte of a cell by the names of NUMBERS; None where a row has no such moment."""
    matrix = cell["matrices"]["bits_per_byte"]
    value = {(row, column): mean for row, column, mean, *_ in matrix["cells"]}
    last = matrix["rows"][-1]
    after_first = value.get((FIRST, FIRST), value.get(("alone", FIRST)))
    mean = (value[last, FIRST] + value[last, SECOND]) / 2
    return {**{text: value.get((last, text)) for text in TEXTS}, "learnt": after_first, "mean": mean}


def measured(folder: Path = HERE / "results") -> dict[str, dict[int | None, Scores]]:
    """Return the scores of every row by seed; the base model has the seed None."""
    by_row: dict[str, dict[int | None, Scores]] = defaultdict(dict)
    for cell in find_cells(folder).values():
        grid = cell.value["grid"]
        by_row[grid["row"]][grid["seed"]] = scores(cell.value)
    return by_row


def table(title: str, rows: Mapping[str, str], scores_by_row: Mapping[str, Mapping[int | None, Scores]]) -> Table:
    """Return the scores of some rows: the mean over seeds, and in brackets every seed."""
    lines = tuple(
        (
            label,
            tuple(TableCell(_number([own[name] for own in scores_by_row[row].values()])) for name in NUMBERS),
        )
        for row, label in rows.items()
        if row in scores_by_row
    )
    return Table(title, ("Trained", *NUMBERS.values()), lines, "Bits per byte: the mean, in brackets each seed.")


def _number(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    each = f" ({', '.join(f'{value:.3f}' for value in known)})" if len(known) > 1 else ""
    return f"{fmean(known):.3f}{each}"


def content(run: Path) -> dict[str, Any]:
    """Return the labels and the nats of content tokens and of the others, after every stage of a run."""
    cells = {
        text: {stage: Cell.load(set_path(run / "evaluation", n, text)) for n, stage in enumerate(STAGES)}
        for text in TEXTS
    }
    return {
        text: {
            "labels": _both(by_stage["base"], "items", "content_items"),
            "nats": {stage: _both(cell, "nats", "content_nats") for stage, cell in by_stage.items()},
        }
        for text, by_stage in cells.items()
    }


def _both(cell: Cell, every: str, of_content: str) -> list[float]:
    """Return a sum over content tokens and over the others."""
    all_of_it, own = float(cell[every].sum()), float(cell[of_content].sum())
    return [own, all_of_it - own]


def content_table(record: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the losses of both kinds of tokens in nats, and their part of what was lost, means over seeds."""
    rows = []
    for text in TEXTS:
        runs = [run[text] for run in record.values()]
        for kind, kind_name in enumerate(("content tokens", "the others")):
            share = fmean(run["labels"][kind] / sum(run["labels"]) for run in runs)
            loss = {s: fmean(run["nats"][s][kind] / run["labels"][kind] for run in runs) for s in STAGES}
            part = _part(runs, kind, "base" if text == GENERAL else FIRST)
            numbers = [f"{100 * share:.0f} %", *(f"{loss[s]:.3f}" for s in STAGES), part if text != SECOND else "–"]
            rows.append((f"{'Wikipedia' if text == GENERAL else text}, {kind_name}", tuple(map(TableCell, numbers))))
    header = (
        "Held-out text",
        "Share of the labels",
        "base ↓",
        f"after {FIRST} ↓",
        f"after {SECOND} ↓",
        "Part of the loss",
    )
    return Table(
        "Content tokens and the others",
        header,
        tuple(rows),
        "Nats per token of that kind. The last column: which part of all nats lost these tokens lost, of papers since "
        "they were learnt, of Wikipedia since the base model.",
    )


def _part(runs: Iterable[Mapping[str, Any]], kind: int, since: str) -> str:
    lost = [[run["nats"][SECOND][k] - run["nats"][since][k] for k in (0, 1)] for run in runs]
    return f"{100 * fmean(own[kind] / sum(own) for own in lost):.0f} %"


def rows_of(run: Path) -> dict[str, Any]:
    """Return quantiles of the outputs and of the moves of rows, and their violins as Markdown; writes the pictures."""
    learner = ContinualLearner.open(run)
    activations = looked_at(learner, BLOCKS)
    pictures = []
    shown = sections(activations, [alike(each, threshold_of(learner)) for each in activations])
    for number, section in enumerate(shown[: len(activations)], 1):
        name = f"scenarios-{number}.svg"
        files.write_text(PAGE.parent / name, standalone(section.plates[0]))
        pictures.append(
            f"![{section.title}: {section.plates[0].caption}]({name})\n\n{section.title}. {section.plates[0].caption}"
        )
    quantiles = {
        each.title: {
            name: [round(float(q), 3) for q in np.quantile(each.relative(name, ALL).numpy(), (0.25, 0.5, 0.75, 0.99))]
            for name in each.halves
        }
        for each in activations
    }
    return {"quantiles": quantiles, "pictures": pictures}


def rows_table(quantiles: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    """Return the quantiles of rows."""
    lines = tuple(
        (f"{title}, {name}", tuple(TableCell(f"{q:.3f}") for q in own))
        for title, by_name in quantiles.items()
        for name, own in by_name.items()
    )
    header = ("Rows", "a quarter is below", "half", "three quarters", "99 %")
    return Table("Rows", header, lines, "All projections; the mean of a layer's rows is 1.")


def recorded(runs: Path) -> dict[str, Any]:
    """Return record.json, measured again where there are runs."""
    record: dict[str, Any] = files.read_json(RECORD) if RECORD.is_file() else {"content": {}}
    for place in sorted(runs.glob(f"{PLAIN}-order0-seed*/run")):
        if (place / "results.json").is_file():
            record["content"][place.parent.name[-1]] = content(place)
    first = runs / f"{PLAIN}-order0-seed0" / "run"
    if "rows" not in record and (first / f"stage-02-{SECOND}").is_dir():
        record["rows"] = rows_of(first)
    files.write_json(RECORD, record)
    return record


def parts(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield what stands below the text."""
    scores_by_row = measured()
    yield markdown_table(table("Scenarios", SCENARIOS, scores_by_row), level=2)
    yield markdown_table(content_table(record["content"]), level=2)
    if rows := record.get("rows"):
        yield "## Which rows moved"
        yield from rows["pictures"]
        yield markdown_table(rows_table(rows["quantiles"]), level=3)
    yield markdown_table(table("Re-warming", WARMING, scores_by_row), level=2)


def main(runs: str = "runs/sweep-scenarios") -> None:
    page = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0].rstrip()
    files.write_text(PAGE, "\n\n".join([page, BEGIN, *parts(recorded(Path(runs)))]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
