"""Store the results of one row in one order with one seed, computed from the cells of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from everlearn.errors import RunError
from everlearn.evaluation import METRICS, Cell, set_path
from everlearn.evaluation.metrics import metrics_of
from everlearn.grid.archive import KeptCell, find_cell, find_cells
from everlearn.version import __version__

RIGHT = ("exact_match", "accuracy", "choice_accuracy")
"""Metrics that count as accuracy: the first one that a task has, before any other share of its examples."""
Moment = Literal["base", "learnt", "final"]
"""The base model; right after the own domain; the end of the stream."""


class Stored(BaseModel):
    """Base class of stored results; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class TaskScores(Stored):
    """Scores of one end task at one moment: fractions, one for each fine-tuning (a single one without fine-tuning)."""

    accuracy: list[float]
    """Share of correct labels, or of right answers."""
    macro_f1: list[float] = []
    """Macro-F1 over the labels of the training part; empty for tasks without labels."""
    f1: list[float] = []
    """The F1 that the task chooses: macro-F1, or micro-F1, which equals accuracy."""
    examples: int = 0
    """Number of test examples; 0 if unknown."""
    shares: list[float] = []
    """Share of each label among the test examples, for the row that always answers one label, if labels are known."""


class ScoreMatrix(Stored):
    """One number after each domain."""

    rows: list[str]
    """``base``, then the domain learnt last."""
    columns: list[str]
    """Names of held-out sets, or of end tasks."""
    values: list[list[float | None]]
    """Numbers, [rows][columns]; null where nothing was measured."""


class PointScores(Stored):
    """Scores at one moment of training."""

    tokens: float
    """Training tokens up to then."""
    learnt: dict[str, dict[str, float]]
    """Metric → held-out set or end task of the stream's domains → score."""
    kept: dict[str, dict[str, float]]
    """The same for general text and for tasks without a domain."""


class Measured(Stored):
    """The measurements of a cell."""

    domains: list[str]
    """Domains, in the order in which they were learnt, if there was one."""
    tasks: dict[str, dict[Moment, TaskScores]] = {}
    """End task → moment → scores."""
    bits_per_byte: dict[str, dict[Moment, float]] = {}
    """Domain or general text → moment → bits per byte of held-out text."""
    matrix: ScoreMatrix | None = None
    """Bits per byte after each domain, if domains were learnt one after another."""
    accuracies: ScoreMatrix | None = None
    """The same for the accuracy of end tasks."""
    points: list[PointScores] = []
    """Scores from the base model to the end, if end tasks are scored inside stages (`evaluation.tasks_every`)."""
    tokens: int = 0
    """Tokens trained on."""
    seconds: float = 0.0
    """Seconds of training, with the method's work between domains and without evaluation."""
    parameters: int = 0
    """Trainable parameters that the method adds for a domain."""
    passes_per_step: float = 0.0
    """Extra forward and backward passes per step, as declared by the method."""
    extra_tokens: float | None = None
    """Tokens of the methods' extra passes, in units of a forward and backward pass, as declared by the methods: in the
    steps, and outside of them (importance, generated text). Null if unknown."""
    notes: list[str] = []
    """Notes for the reader."""


class CellResult(Measured):
    """The file of a cell."""

    everlearn: str = __version__
    """Version that wrote the file."""
    suite: str
    """Name of the suite."""
    entry: str
    """Method, variant or arrangement."""
    title: str
    """Title in tables."""
    paper: str = ""
    """URL of the method's paper."""
    order: int | None
    """Number of the order; null if it makes no difference."""
    seed: int | None
    """Seed of training; null if it makes no difference."""
    options: dict[str, Any] = {}
    """Options of the method that differ from its defaults."""
    domain_id_at_test: bool = False
    """Whether the method was told the domain of a text in evaluation."""
    old_data: bool = False
    """Whether the method kept text of earlier domains."""
    settings: dict[str, Any]
    """What all cells of the grid share: settings, and digests of model and data."""

    @property
    def name(self) -> str:
        """Return the name of the file, without its extension."""
        return cell_name(self.entry, self.order, self.seed)

    def check(self, settings: Mapping[str, Any], where: Path) -> None:
        """Raise ``RunError`` if it was measured with settings other than these."""
        for key in sorted({*settings, *self.settings}):
            mine, other = self.settings.get(key), settings.get(key)
            if mine != other:
                shown = f": {mine!r} there, {other!r} here" if len(f"{mine}{other}") < 200 else ""
                raise RunError(
                    f"{self.name} in '{where}' was measured with other settings (`{key}`{shown}). Cells of one table "
                    "must share them: use the same settings, or another folder (`--results`)."
                )


def cell_name(entry: str, order: int | None, seed: int | None) -> str:
    """Return a name such as ``das-order0-seed1``; parts that make no difference are left out."""
    parts = [entry, *([f"order{order}"] if order is not None else []), *([f"seed{seed}"] if seed is not None else [])]
    return "-".join(parts)


def load_cell(folder: Path, name: str) -> CellResult | None:
    """Return a cell of a folder, from its own file or from the archive; None if it is not measured.

    Raises:
        RunError: the file is damaged or not a cell.
    """
    kept = find_cell(folder, name)
    return None if kept is None else _validated(kept)


def load_results(folder: Path) -> list[CellResult]:
    """Return every cell in a folder and its archive, sorted by name.

    Raises:
        RunError: a file is damaged, not a cell or not named after its cell, or the cells were measured with
            different settings.
    """
    found: list[CellResult] = []
    for name, kept in find_cells(folder).items():
        cell = _validated(kept)
        if cell.name != name:
            raise RunError(
                f"'{kept.where}' holds the cell {cell.name}, which would be counted twice under another name. Rename "
                f"it to {cell.name}.json, or remove it from there."
            )
        found.append(cell)
        cell.check(found[0].settings, folder)
    return found


def _validated(kept: KeptCell) -> CellResult:
    try:
        return CellResult.model_validate(kept.value)
    except ValidationError as error:
        first = error.errors()[0]
        key = f"`{'.'.join(map(str, first['loc']))}`: " if first["loc"] else ""
        raise RunError(f"'{kept.where}' is no cell of a grid: {key}{first['msg']}. Remove it from there.") from None


def scores_of(cell: Cell) -> TaskScores:
    """Return the scores of an end task's cell."""
    shares = [each for each in metrics_of([cell]) if each.unit == "fraction" and each.higher_is_better]
    right = next(each for each in (*map(METRICS.__getitem__, RIGHT), *shares) if each.applies(cell))
    f1 = {name: METRICS[name].scores(cell).tolist() for name in ("macro_f1", "f1") if METRICS[name].applies(cell)}
    return TaskScores(accuracy=right.scores(cell).tolist(), examples=len(cell), **f1)


def bits_of(evaluation: Path, row: int, name: str) -> float:
    """Return the bits per byte of a held-out set after `row` domains, from a run's cells."""
    return METRICS["bits_per_byte"].score(Cell.load(set_path(evaluation, row, name)))


def measured_sets(evaluation: Path, row: int, names: Iterable[str]) -> list[str]:
    """Return the held-out sets that were measured after `row` domains."""
    return [name for name in names if set_path(evaluation, row, name).is_file()]
