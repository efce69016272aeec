"""One run folder, read: scores, quantities with intervals, the training log.

Only the tables of scores must be sound. For the rest the report reads JSON, not the objects that wrote it, so that a
run of an older version, an unfinished run and a run copied without its log can still be shown. What is absent is None
here and "–" on the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import Column, summarise
from everlearn.evaluation.results import ScoreTable
from everlearn.files import read_json

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def clean(value: Any) -> Any:
    """Replace characters that no page, terminal or UTF-8 file can hold, in every string of a JSON value."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    return value


_UNKNOWN = Estimate()


@dataclass(frozen=True)
class Matrix:
    """One metric's scores of a run, by number of the row: row 0 is the untouched base model."""

    metric: str
    table: ScoreTable
    cells: dict[tuple[str, str], Estimate]
    """(Label of the row, column) → score."""

    @classmethod
    def read(cls, metric: str, raw: Any) -> Matrix:
        """From one entry of ``matrices`` in results.json, of this version or an earlier one.

        Raises:
            RunError: it is no table of scores.
        """
        try:
            table = ScoreTable.model_validate(raw)
        except ValidationError as error:
            raise RunError(f"The scores `{metric}` of the results are damaged: {error.errors()[0]['msg']}.") from None
        return cls(metric, table, table.estimates())

    @property
    def title(self) -> str:
        """What the metric is called."""
        return self.table.title or self.metric.replace("_", " ").capitalize()

    @property
    def unit(self) -> str:
        """Of the values; nothing for a fraction, which is a plain number: nobody writes "0.71 fraction"."""
        return "" if self.table.unit == "fraction" else self.table.unit

    @cached_property
    def higher_is_better(self) -> bool:
        """False for losses."""
        return self.table.higher_is_better

    @cached_property
    def rows(self) -> list[str]:
        """``base``, then the domain learnt last."""
        return self.table.rows

    @property
    def columns(self) -> list[str]:
        """Names of held-out sets or end tasks."""
        return self.table.columns

    @property
    def task_domains(self) -> dict[str, str | None]:
        """End task → the domain that it belongs to; empty for held-out text."""
        return self.table.task_domains or {}

    def cell(self, row: int, column: str) -> Estimate:
        """R[row, column] with its interval; -1 is the end of the stream. Empty where nothing was measured."""
        return self.cells.get((self.rows[row], column), _UNKNOWN) if self.rows else _UNKNOWN

    def own_stage(self, column: str) -> int | None:
        """The row after which a column's domain has just been learnt; None for general sets and stages to come."""
        return self._stages.get(self.task_domains.get(column, column))

    @cached_property
    def _stages(self) -> dict[str | None, int]:
        return {domain: stage for stage, domain in enumerate(self.rows) if stage}

    def worse(self, column: str, since: int, row: int) -> float | None:
        """How much worse a column is after `row` than after `since`: positive is worse, for every metric."""
        before, after = self.cell(since, column).value, self.cell(row, column).value
        if before is None or after is None:
            return None
        return before - after if self.higher_is_better else after - before

    @cached_property
    def derived(self) -> dict[str, dict[str, Estimate]]:
        """Every quantity from the scores alone, without intervals: for files that lack one."""
        numbers = {label: row for row, label in enumerate(self.rows)}
        measured: dict[str, dict[int, float]] = {name: {} for name in self.columns}
        for (label, name), found in self.cells.items():
            if found.value is not None:
                measured[name][numbers[label]] = found.value
        columns = [
            Column(name, self.own_stage(name), tuple(own), np.array([*own.values()]), np.full((1, len(own)), np.nan))
            for name, own in measured.items()
        ]
        return summarise(columns, len(self.rows) - 1, self.higher_is_better)


@dataclass(frozen=True)
class Run:
    """One run folder."""

    name: str
    title: str
    results: dict[str, Any]
    log: list[dict[str, Any]] = field(default_factory=list)
    recipe: str | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    broken_lines: int = 0
    folder: Path | None = None
    """Where it lies; the cells in its ``evaluation/`` allow paired comparisons."""

    @property
    def place(self) -> str:
        """Its folder as a command names it; one outside the working directory is told from others by its own name."""
        if self.folder is None:
            return f"runs/{self.name}"
        below = self.folder.name and not self.folder.is_absolute() and ".." not in self.folder.parts
        return self.folder.as_posix() if below else f"runs/{self.folder.resolve().name}"

    @property
    def domains(self) -> list[str]:
        """The stream, in the order in which it is learnt."""
        return [str(domain) for domain in self.results.get("domains") or []]

    @property
    def general(self) -> list[str]:
        """Names of the general sets: text that no stage trains on."""
        return [str(name) for name in self.results.get("general") or []]

    @cached_property
    def matrices(self) -> dict[str, Matrix]:
        """Metric name → score matrix, in the order of the file."""
        found = self.results.get("matrices") or {}
        return {metric: Matrix.read(metric, raw) for metric, raw in found.items() if isinstance(raw, Mapping)}

    @property
    def stages_done(self) -> int:
        """How many stages have been measured."""
        return max((len(matrix.rows) - 1 for matrix in self.matrices.values()), default=0)

    @property
    def cost(self) -> dict[str, Any]:
        """Time, tokens and memory; empty when the file has none."""
        return self.results.get("cost") or {}

    def summary(self, metric: str, measure: str) -> dict[str, Estimate]:
        """One quantity's estimates: column → estimate, and "mean"; those that the file lacks come from its scores."""
        raw = ((self.results.get("summary") or {}).get(metric) or {}).get(measure)
        if raw is None and metric in self.matrices:
            return self.matrices[metric].derived.get(measure, {})
        return {str(column): Estimate.read(entry) for column, entry in (raw or {}).items()}


def from_results(results: Any, recipe: str | None = None, name: str = "") -> Run:
    """A run from the content of its results.json.

    Args:
        results: The parsed file, or an object with ``model_dump`` that holds the same.
        recipe: The resolved recipe's YAML, if known.
        name: What to call it when the results do not say.

    Raises:
        RunError: what is given is not a run's results.
    """
    raw = results.model_dump(mode="json") if hasattr(results, "model_dump") else results
    if not isinstance(raw, Mapping) or not isinstance(raw.get("matrices"), Mapping):
        raise RunError(f"The results of run '{name}' are damaged: `matrices` must be a table of score matrices.")
    found = clean(raw)
    methods = [str(method.get("title") or method.get("name")) for method in found.get("methods") or []]
    called = str(found.get("run") or name)
    return Run(called, " + ".join(methods) or called, found, recipe=clean(recipe))


def read_run(folder: Path) -> Run:
    """Read a run folder; everything but results.json may be missing.

    Raises:
        RunError: the folder or its results.json is missing or damaged.
    """
    folder = Path(folder)
    path = folder / "results.json"
    if not path.is_file():
        why = "it has no results.json" if folder.is_dir() else "there is no such folder"
        raise RunError(
            f"{folder} is not a run that can be reported: {why}. Give the folder of a run, for example runs/<name>."
        )
    run = from_results(read_json(path), _text(folder / "recipe.yaml"), folder.resolve().name)
    log, broken = _read_log(folder / "metrics.jsonl")
    environment = read_json(folder / "environment.json") if (folder / "environment.json").is_file() else {}
    environment = clean(environment) if isinstance(environment, Mapping) else {}
    return Run(run.name, run.title, run.results, log, run.recipe, environment, broken, folder)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _read_log(path: Path) -> tuple[list[dict[str, Any]], int]:
    # A killed run leaves half a line at the end: count such lines, never stop for them.
    lines: list[dict[str, Any]] = []
    broken = 0
    for line in (_text(path) or "").splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            entry = None
        if isinstance(entry, dict):
            lines.append(clean(entry))
        else:
            broken += 1
    return lines, broken
