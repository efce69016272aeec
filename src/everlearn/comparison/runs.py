"""Read a run folder: estimates with intervals, score matrices and the training log.

Reports read JSON rather than the objects that wrote it, so that an unfinished run, a run of another program and one
that was copied without its log can still be shown. Missing values are None here and "–" in reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from everlearn import plugins
from everlearn.config.public_paths import local_model, paths_of, without_folders
from everlearn.errors import RunError
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.results import GridCell, check_types
from everlearn.evaluation.score_table import ScoreTable
from everlearn.files import check, listed, read_json, reading
from everlearn.model.weight_movement import Movement, movements

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def clean(value: Any) -> Any:
    """Replace characters that no page, terminal or UTF-8 file can hold, in every string of a JSON value."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return _UNPRINTABLE.sub("\ufffd", value)
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    return value


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
    """The folder on disk; the cells in its ``evaluation/`` allow paired comparisons."""

    @property
    def place(self) -> str:
        """Return its folder for use in a command: relative, or only by its name if outside the working directory."""
        if self.folder is None:
            return f"runs/{self.name}"
        place, here = self.folder.resolve(), Path.cwd()
        return place.relative_to(here).as_posix() if here in place.parents else f"runs/{place.name}"

    @property
    def imports(self) -> list[str]:
        """Return the modules and files that its user named, without which it cannot run again (`--import`)."""
        return plugins.imports(self.environment.get("plugins"))

    @property
    def domains(self) -> list[str]:
        """Return the domains of the stream, in the order in which they are learnt."""
        return [str(domain) for domain in self.results.get("domains") or []]

    @property
    def general(self) -> list[str]:
        """Return the names of the general sets: text on which no stage trains."""
        return [str(name) for name in self.results.get("general") or []]

    @property
    def groups(self) -> dict[str, str]:
        """Return the super-domain of each domain that has one."""
        return {str(name): str(group) for name, group in (self.results.get("groups") or {}).items()}

    @property
    def leaked(self) -> dict[str, float]:
        """Return, for each domain, general set or end task, the share of its held-out text found in training text."""
        return {name: share for name, share in self._mapping("leaked").items() if isinstance(share, float)}

    @property
    def settled(self) -> dict[str, Any]:
        """Return the values in effect of those keys of the recipe that depend on the model."""
        return self._mapping("effective")

    def alone(self, metric: str) -> dict[str, float]:
        """Return, for each domain, the score of the base model trained on it alone, if measured."""
        scores = self._mapping("alone").get(metric)
        return dict(scores) if isinstance(scores, Mapping) else {}

    def _mapping(self, key: str) -> dict[str, Any]:
        mapping = self.results.get(key)
        return {str(name): value for name, value in mapping.items()} if isinstance(mapping, Mapping) else {}

    @cached_property
    def matrices(self) -> dict[str, ScoreTable]:
        """Return the score matrix of each metric, in the order of the file."""
        tables = self.results.get("matrices") or {}
        return {metric: ScoreTable.lenient(metric, raw) for metric, raw in tables.items() if isinstance(raw, Mapping)}

    @property
    def tasks(self) -> list[str]:
        """Return its end tasks."""
        return list(dict.fromkeys(task for table in self.matrices.values() for task in table.task_domains or ()))

    @cached_property
    def grid(self) -> GridCell:
        """Return the row, order, seed and settings of the run in a grid.

        Raises:
            RunError: it is not a cell of a grid.
        """
        if self.results.get("grid") is None:
            raise RunError(f"The run '{self.name}' is not one of a grid: its results have no `grid`.")
        return GridCell.model_validate(self.results["grid"])

    @property
    def tokens(self) -> int:
        """Return the number of tokens trained on."""
        return int(self.cost.get("tokens") or 0)

    @property
    def compute(self) -> float | None:
        """Return the tokens trained on and those of the methods' extra passes; None outside of grids or if unknown."""
        extra = self.grid.extra_tokens if self.results.get("grid") is not None else None
        return None if extra is None else self.tokens + extra

    @property
    def training_seconds(self) -> float:
        """Return the seconds of training, with the methods' work between domains and without evaluation."""
        return float(self.cost.get("training_seconds") or 0.0)

    @property
    def notes(self) -> list[str]:
        """Return its notes for the reader."""
        return [str(note) for note in self.results.get("notes") or []]

    def only(self, domains: Container[str], tasks: Container[str]) -> Run:
        """Return the run restricted to some of its domains and end tasks; general text stays."""
        left_out = [name for name in self.domains if name not in domains]
        results = {**self.results, "domains": [name for name in self.domains if name in domains], "summary": {}}
        results["matrices"] = {}
        for metric, raw in self.results["matrices"].items():
            kept = [c for c in raw["columns"] if (c in tasks if raw.get("task_domains") else c not in left_out)]
            cells = [cell for cell in raw["cells"] if cell[1] in kept]
            results["matrices"][metric] = {**raw, "columns": kept, "cells": cells}
        return replace(self, results=results)

    @cached_property
    def _held_out(self) -> Mapping[str, Any]:
        try:
            return listed(self.folder / "evaluation" / "sets") if self.folder is not None else {}
        except RunError:  # a run with a damaged seal can still be reported
            return {}

    def held_out_digest(self, name: str) -> str | None:
        """Return the digest of the held-out blocks of a domain or general set; None if the run did not keep them."""
        mark = self._held_out.get(f"{name}.safetensors")
        return None if mark is None else str(mark)

    def training_digest(self, domain: str) -> str | None:
        """Return the fingerprint of the training data of a domain: text, tokenizer, rows; None if unknown."""
        if self.folder is None or domain not in self.domains:
            return None
        path = self.folder / f"stage-{self.domains.index(domain) + 1:02d}-{domain}" / "stage.json"
        try:
            mark = read_json(path).get("fingerprint") if path.is_file() else None
        except RunError:  # a run with a damaged stage can still be reported
            return None
        return None if mark is None else str(mark)

    @cached_property
    def movements(self) -> dict[int, Movement]:
        """Return how far each layer moved in each stage, if measured."""
        return movements(self.folder) if self.folder is not None else {}

    @property
    def stages_done(self) -> int:
        """Return the number of stages that have been measured."""
        return max((len(matrix.rows) - 1 for matrix in self.matrices.values()), default=0)

    @property
    def unfinished(self) -> bool:
        """Return whether domains of its stream are still to be learnt or measured."""
        return bool(self.domains) and (self.results.get("status") != "finished" or self.stages_done < len(self.domains))

    @property
    def cost(self) -> dict[str, Any]:
        """Return time, tokens and memory; empty if the file has none."""
        return self.results.get("cost") or {}

    def summary(self, metric: str, measure: str) -> dict[str, Estimate]:
        """Return the estimates of a quantity by column (and "mean"); if the file lacks them, from its scores."""
        raw = ((self.results.get("summary") or {}).get(metric) or {}).get(measure)
        if raw is None and metric in self.matrices:
            return self.matrices[metric].derived.get(measure, {})
        return {str(column): Estimate.read(entry) for column, entry in (raw or {}).items()}


def from_results(results: Any, recipe: str | None = None, name: str = "") -> Run:
    """Make a run from the content of its results.json.

    Args:
        results: The parsed file, or an object with ``model_dump`` that holds the same.
        recipe: The resolved recipe's YAML, if known.
        name: The run's name if the results have none.

    Raises:
        RunError: the content is not a run's results.
    """
    raw = results.model_dump(mode="json") if hasattr(results, "model_dump") else results
    if not isinstance(raw, Mapping) or not isinstance(raw.get("matrices"), Mapping):
        raise RunError(f"The results of run '{name}' are damaged: `matrices` must be a table of score matrices.")
    content = clean(raw)
    # Names of checkpoints, domains and tasks are keys of the scores and must not change.
    scores = {key: content[key] for key in ("matrices", "summary", "domains", "general") if key in content}
    model = {"model": local_model(str(content["model"]))} if content.get("model") is not None else {}
    content = without_folders(content, paths_of(recipe)) | scores | model
    methods = [str(method.get("title") or method.get("name")) for method in content.get("methods") or []]
    called = str(content.get("run") or name)
    return Run(called, " + ".join(methods) or called, content, recipe=clean(recipe))


def read_run(folder: Path) -> Run:
    """Read a run folder; everything but results.json may be missing.

    If a run was interrupted before it wrote results, they are built from its cells.

    Raises:
        RunError: the folder is missing or has no scores, or its results.json is damaged.
    """
    folder = Path(folder)
    path = folder / "results.json"
    if path.is_file():
        results = read_json(path)
        check_types(results, path)
    elif (results := _so_far(folder)) is None:
        why = "it has no results.json" if folder.is_dir() else "there is no such folder"
        raise RunError(
            f"{folder} is not a run that can be reported: {why}. Give the folder of a run, for example runs/<name>."
        )
    run = from_results(results, _text(folder / "recipe.yaml"), folder.resolve().name)
    log, broken = _read_log(folder / "metrics.jsonl")
    return replace(run, log=log, environment=environment_of(folder, run.recipe), broken_lines=broken, folder=folder)


def environment_of(folder: Path, recipe: str | None) -> dict[str, Any]:
    """Return the versions, hardware and plugins of a run, without the folders of its recipe; empty if unknown."""
    path = folder / "environment.json"
    environment = read_json(path) if path.is_file() else None
    return without_folders(clean(environment), paths_of(recipe)) if isinstance(environment, Mapping) else {}


def _so_far(folder: Path) -> Any:
    """Return results built from the cells of an interrupted run; None if there are none."""
    if not (folder / "recipe.yaml").is_file() or not any(folder.glob("evaluation/stage-*/*.safetensors")):
        return None
    # Imported here, since this loads the methods, which a report of finished runs does not need.
    from everlearn.run.collect_results import Outcome
    from everlearn.run.folder import RunFolder

    run = RunFolder(folder)
    recipe = run.recipe()
    return Outcome(recipe, run).results(recipe.objective or "", recipe.run.notes).model_dump(mode="json")


def _text(path: Path) -> str | None:
    if not path.is_file():
        return None
    check(path)
    with reading(path):
        return path.read_text(encoding="utf-8", errors="replace")


def _read_log(path: Path) -> tuple[list[dict[str, Any]], int]:
    # A killed run leaves an incomplete last line: such lines are counted and skipped.
    lines: list[dict[str, Any]] = []
    broken = 0
    for line in (_text(path) or "").splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict):
            lines.append(clean(entry))
        else:
            broken += 1
    return lines, broken
