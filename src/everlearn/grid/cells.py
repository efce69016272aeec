"""One entry of a grid in one order with one seed, as it is kept: what it scored, made of the cells of its runs."""

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
"""What counts as a right answer, by metric: the first that a task has, before any other share of its examples."""
Moment = Literal["base", "learnt", "final"]
"""The untouched base model; right after the own domain; the end of the stream."""


class Stored(BaseModel):
    """Base of what is kept: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class TaskScores(Stored):
    """One end task at one moment: fractions, one for each fine-tuning (one where nothing is fine-tuned)."""

    accuracy: list[float]
    """Share of correct labels; of right answers where the model answers itself."""
    macro_f1: list[float] = []
    """Over the labels of the training part; empty for tasks without."""
    f1: list[float] = []
    """The F1 that the task asks for: macro-F1, or micro-F1, which is accuracy."""
    examples: int = 0
    """How many were asked; 0 where it was not written down."""
    shares: list[float] = []
    """Of each label among those asked, where the entry is that of one label for everything and labels are known."""


class ScoreMatrix(Stored):
    """One number after each domain."""

    rows: list[str]
    """``base``, then the domain learnt last."""
    columns: list[str]
    """Held-out sets, or end tasks."""
    values: list[list[float | None]]
    """[rows][columns]; null where nothing was measured."""


class PointScores(Stored):
    """One moment of a training."""

    tokens: float
    """Learnt from until then."""
    learnt: dict[str, dict[str, float]]
    """Metric → held-out set or end task of a domain that is learnt → score."""
    kept: dict[str, dict[str, float]]
    """The same of general text and of tasks that belong to no domain."""


class Measured(Stored):
    """What running a cell brought."""

    domains: list[str]
    """In the order in which they were learnt, if there was one."""
    tasks: dict[str, dict[Moment, TaskScores]] = {}
    """End task → moment → scores."""
    bits_per_byte: dict[str, dict[Moment, float]] = {}
    """Domain or general text → moment → bits per byte of held-out text."""
    matrix: ScoreMatrix | None = None
    """Bits per byte after each domain, where domains were learnt one after another."""
    accuracies: ScoreMatrix | None = None
    """The same of end tasks: accuracy."""
    points: list[PointScores] = []
    """From the base model to the end, where end tasks are asked inside a stage (`evaluation.tasks_every`)."""
    tokens: int = 0
    """Trained on."""
    seconds: float = 0.0
    """Training, with everything that the method does between domains; not the evaluation."""
    parameters: int = 0
    """Trainable ones that the method adds for a domain."""
    passes_per_step: float = 0.0
    """Extra forward and backward passes per step, as the method declares them."""
    extra_tokens: float | None = None
    """Tokens run beside those learnt from, in units of a forward and backward pass, as the methods declare their
    passes: in the steps, and outside of them (importance, text that the model writes). Null where it was not noted."""
    notes: list[str] = []
    """What a reader should know."""


class CellResult(Measured):
    """A file of a grid's results."""

    everlearn: str = __version__
    """Version that wrote it."""
    suite: str
    """Name of the suite."""
    entry: str
    """Method, variant or arrangement."""
    title: str
    """As tables write it."""
    paper: str = ""
    """URL of the method's paper."""
    order: int | None
    """Null where it makes no difference."""
    seed: int | None
    """Of training; null where it makes no difference."""
    options: dict[str, Any] = {}
    """Of the method, where they are not its defaults."""
    domain_id_at_test: bool = False
    """Whether the method was told at test where a text comes from."""
    old_data: bool = False
    """Whether the method kept text of earlier domains."""
    settings: dict[str, Any]
    """What all cells of the grid share: settings, and marks of the contents of model and data."""

    @property
    def name(self) -> str:
        """Of the file, without its ending."""
        return cell_name(self.entry, self.order, self.seed)

    def check(self, settings: Mapping[str, Any], where: Path) -> None:
        """Raise ``RunError`` if it was measured with other settings than these."""
        for key in sorted({*settings, *self.settings}):
            mine, other = self.settings.get(key), settings.get(key)
            if mine != other:
                shown = f": {mine!r} there, {other!r} here" if len(f"{mine}{other}") < 200 else ""
                raise RunError(
                    f"{self.name} in '{where}' was measured with other settings (`{key}`{shown}). Cells of one table "
                    "must share them: use the same settings, or another folder (`--results`)."
                )


def cell_name(entry: str, order: int | None, seed: int | None) -> str:
    """``das-order0-seed1``; without what makes no difference."""
    parts = [entry, *([f"order{order}"] if order is not None else []), *([f"seed{seed}"] if seed is not None else [])]
    return "-".join(parts)


def load_cell(folder: Path, name: str) -> CellResult | None:
    """Return a cell of a folder, from a file of its own or from the archive; None where it is not measured.

    Raises:
        RunError: the file is damaged or no cell.
    """
    kept = find_cell(folder, name)
    return None if kept is None else _validated(kept)


def load_results(folder: Path) -> list[CellResult]:
    """Return every cell in a folder and its archive, sorted by name.

    Raises:
        RunError: a file is damaged, no cell or not named like its cell, or the cells were measured with different
            settings.
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
    """What an end task's answers are worth."""
    shares = [each for each in metrics_of([cell]) if each.unit == "fraction" and each.higher_is_better]
    right = next(each for each in (*map(METRICS.__getitem__, RIGHT), *shares) if each.applies(cell))
    f1 = {name: METRICS[name].scores(cell).tolist() for name in ("macro_f1", "f1") if METRICS[name].applies(cell)}
    return TaskScores(accuracy=right.scores(cell).tolist(), examples=len(cell), **f1)


def bits_of(evaluation: Path, row: int, name: str) -> float:
    """A held-out set after `row` domains, from what a run keeps: bits per byte."""
    return METRICS["bits_per_byte"].score(Cell.load(set_path(evaluation, row, name)))


def measured_sets(evaluation: Path, row: int, names: Iterable[str]) -> list[str]:
    """Those of the held-out sets that were measured after `row` domains."""
    return [name for name in names if set_path(evaluation, row, name).is_file()]
