"""Turn cells of a grid that were written before cells were `results.json` files into such files.

    python benchmarks/convert_cells.py FOLDER …

FOLDER holds a grid's cells: JSON files, an archive, or both; it is left with an archive, if it had one. A cell of the
new form stays. Old cells had scores at three moments (base model, after the own domain, end of the stream) and, of
a stream, one table for bits per byte and one for accuracy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import everlearn.tasks  # noqa: F401  # registers the metrics
from everlearn import files
from everlearn.evaluation import METRICS, Results
from everlearn.evaluation.results import cell_name
from everlearn.grid.archive import ARCHIVE, find_cells, pack, unpack

RENAMED = {"entry": "row"}
GRID = (
    "suite", "entry", "title", "paper", "order", "seed", "options", "domain_id_at_test", "old_data", "parameters",
    "passes_per_step", "extra_tokens", "settings",
)  # fmt: skip
"""Keys of an old cell that the group `grid` has."""
Scores = dict[tuple[str, str], float]
"""Row and column → score."""


def converted(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return an old cell as the content of a `results.json`."""
    domains, points = old["domains"], old.get("points") or []
    tables = {metric: _table(old, metric, scores) for metric, scores in _scores(old).items() if scores}
    facts = {RENAMED.get(key, key): old[key] for key in GRID if key in old}
    finals = {task: moments.get("final", {}) for task, moments in old.get("tasks", {}).items()}
    facts["examples"] = {task: final["examples"] for task, final in finals.items() if final.get("examples")}
    facts["shares"] = {task: final["shares"] for task, final in finals.items() if final.get("shares")}
    facts["points"] = points[1:-1]
    results = Results(
        everlearn=old.get("everlearn", "0.1.0"),
        run=cell_name(old["entry"], old["order"], old["seed"]),
        methods=[],
        status="finished",
        objective="",
        model=str(old["settings"].get("model", "")),
        seed=old["seed"] or 0,
        domains=domains,
        general=[name for name in old.get("bits_per_byte", {}) if name not in domains],
        matrices={name: table for name in METRICS if (table := tables.get(name)) is not None},
        cost={"tokens": old.get("tokens", 0), "training_seconds": old.get("seconds", 0.0)},
        notes=old.get("notes", []),
        grid=facts,
    )
    return results.model_dump(mode="json")


def _scores(old: Mapping[str, Any]) -> dict[str, Scores]:
    """Return the scores of each metric, from the moments, the tables of a stream and the points along its training."""
    by_metric: dict[str, Scores] = {}
    texts = {
        name: {m: {"bits_per_byte": v} for m, v in bits.items()} for name, bits in old.get("bits_per_byte", {}).items()
    }
    tasks = {
        name: {m: {k: fmean(at[k]) for k in ("accuracy", "macro_f1", "f1") if at.get(k)} for m, at in moments.items()}
        for name, moments in old.get("tasks", {}).items()
    }
    for of in (texts, tasks):
        for name, moments in of.items():
            for moment, scores in moments.items():
                for metric, value in scores.items():
                    for row in _rows(old, name, moment):
                        by_metric.setdefault(metric, {})[row, name] = value
    for metric, key in (("bits_per_byte", "matrix"), ("accuracy", "accuracies")):
        for row, column, value in _dense(old.get(key)):
            by_metric.setdefault(metric, {})[row, column] = value
    if points := old.get("points"):
        for row, point in (("base", points[0]), (old["domains"][-1], points[-1])):
            for metric, by_name in [*point["learnt"].items(), *point["kept"].items()]:
                by_metric.setdefault(metric, {}).update({(row, name): value for name, value in by_name.items()})
    return by_metric


def _dense(table: Mapping[str, Any] | None) -> Iterator[tuple[str, str, float]]:
    for row, values in zip(table["rows"], table["values"], strict=True) if table else ():
        for column, value in zip(table["columns"], values, strict=True) if table else ():
            if value is not None:
                yield row, column, value


def _rows(old: Mapping[str, Any], name: str, moment: str) -> list[str]:
    """Return the row of a moment."""
    rows = _labels(old)
    if moment == "learnt":
        return [name if old["order"] is not None else "alone"]
    return [rows[0] if moment == "base" else rows[-1]]


def _labels(old: Mapping[str, Any]) -> list[str]:
    """Return the rows of a cell."""
    if old["order"] is not None:
        return ["base", *old["domains"]]
    each = [*old.get("tasks", {}).values(), *old.get("bits_per_byte", {}).values()]
    learnt = any("learnt" in moments for moments in each)
    if old["entry"] == "constant":
        return ["constant"]
    if not learnt:
        return ["base", "none" if old["entry"] == "none" else "pool"]
    return ["base", "alone", *(["merged"] if old["entry"] == "merged" else [])]


def _table(old: Mapping[str, Any], metric: str, scores: Scores) -> dict[str, Any]:
    known, rows = METRICS[metric], _labels(old)
    columns = list(dict.fromkeys(column for _, column in scores))
    general = {name for point in old.get("points") or [] for own in point["kept"].values() for name in own}
    of_tasks = metric not in ("bits_per_byte", "loss", "perplexity")
    own_domains = _tasks(old) if of_tasks else {name: name for name in old["domains"]}
    domains = {column: None if column in general else own_domains.get(column) for column in columns}
    learnt = "alone" if "alone" in rows else None
    own = {column: learnt for column, domain in domains.items() if domain is not None}
    places = [(row, column) for row in rows for column in columns if (row, column) in scores]
    return {
        "title": known.title, "higher_is_better": known.higher_is_better, "unit": known.unit, "rows": rows,
        "columns": columns, "task_domains": domains if of_tasks else None,
        "learnt_at": None if old["order"] is not None else own,
        "cells": [[*place, scores[place], None, None] for place in places],
    }  # fmt: skip


def _tasks(old: Mapping[str, Any]) -> dict[str, str]:
    """Return the domain of each end task: the one of the same name or, of tasks inside a stage, the only one."""
    table = old.get("accuracies") or {"columns": ()}
    own = {task: task for task in (*old.get("tasks", {}), *table["columns"])}
    inside = {task for point in old.get("points") or [] for scores in point["learnt"].values() for task in scores}
    return dict.fromkeys(inside, old["domains"][0]) | own if len(old["domains"]) == 1 else own


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        archived = (folder / ARCHIVE).is_file()
        count = unpack(folder)
        for name, cell in find_cells(folder).items():
            if "grid" not in cell.value:
                files.write_json(folder / f"{name}.json", converted(cell.value))
        if archived:
            pack(folder)
        print(f"{folder}: {count} cells")


if __name__ == "__main__":
    main()
