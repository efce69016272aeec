"""Evaluate the checkpoints of a run: find the missing cells and measure each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from everlearn import files
from everlearn.errors import ModelError
from everlearn.evaluation import Cell, alone_path, set_path, task_path
from everlearn.evaluation.results import Took, read
from everlearn.predictors import Checkpoint
from everlearn.run.evaluated_models import EvaluatedModels
from everlearn.run.folder import TIME
from everlearn.run.forecast import SETS
from everlearn.run.measurement_plan import wanted_sets, wanted_tasks
from everlearn.run.open_run import OpenRun
from everlearn.run.row_scorer import RowScorer, damage_of, refuse_damaged
from everlearn.tasks.samples import samples_path


class Scorer(EvaluatedModels):
    """Evaluate the checkpoints of one run.

    Args:
        run: the open run.
    """

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run)
        self.cells = run.folder.path / "evaluation"

    def score(self, row: int) -> None:
        """Measure the missing cells of the checkpoint after `row` domains; 0 is the base model."""
        if self.run.processes.is_main_process:
            self._score(row)
        self.run.processes.wait_for_everyone()

    def _score(self, row: int) -> None:
        sets = [name for name in wanted_sets(self.recipe, row) if self._to_measure(set_path(self.cells, row, name))]
        listed = wanted_tasks(self.recipe, row)
        tasks = [task for task in listed if self._to_measure(task_path(self.cells, row, task.name))]
        samples = [] if not self.recipe.evaluation.samples else wanted_sets(self.recipe, row)
        samples = [name for name in samples if self._to_measure(samples_path(self.cells, row, name))]
        if not sets and not tasks and not samples:
            return
        started = time.monotonic()
        where = "the base model" if row == 0 else f"after {self.domains[row - 1]}"
        try:
            with self.run.reporter.activity(f"Loading {'' if row == 0 else 'the model '}{where}", 1) as loaded:
                model = self.load(row)
                loaded(1)
        except ModelError as error:
            if not self._may_be_gone(row):
                raise
            paths = [set_path(self.cells, row, name) for name in sets]
            paths += [task_path(self.cells, row, task.name) for task in tasks]
            if paths:
                self._do_without(row, [*paths, *(samples_path(self.cells, row, name) for name in samples)], error)
            return
        scorer = RowScorer(self, row, model, where)
        scorer.measure_text(sets, samples)
        for config in tasks:
            scorer.measure_task(config)
        self._spent(self.folder.row(row), time.monotonic() - started)

    def _to_measure(self, path: Path) -> bool:
        """Return whether a cell is missing or damaged; report the damage."""
        if not path.is_file():
            return True
        if (wrong := damage_of(path)) is not None:
            self.run.reporter.say(f"{wrong}. It is measured again.")
        return wrong is not None

    def _may_be_gone(self, row: int) -> bool:
        """Return whether a run may do without the model of a row: its weights were removed, or it is the base model."""
        if row == 0:
            return self.folder.finished(1, self.domains[0])
        return self.folder.without_weights(row, self.domains[row - 1])

    def _do_without(self, row: int, paths: Sequence[Path], error: ModelError) -> None:
        """Report that a model is not measured: that must not prevent learning a new domain."""
        for path in paths:
            refuse_damaged(path, str(error))
        who = "The base model" if row == 0 else f"The model after {self.domains[row - 1]}"
        self.run.reporter.say(f"{who} is not measured on new sets: {error}")

    def score_alone(self, name: str, place: Path) -> None:
        """Measure the model of a domain that was trained alone."""
        path = alone_path(self.cells, name)
        if self.run.processes.is_main_process and self._to_measure(path):
            model = self.run.load(place).to(self.device)
            started = time.monotonic()
            self._losses(model, name).save(path)
            seconds = time.monotonic() - started
            self.run.took(SETS, 1, seconds)
            self._spent(path.parent, seconds)
        self.run.processes.wait_for_everyone()

    def _losses(self, model: nn.Module, name: str) -> Cell:
        """Score any model on a held-out set."""
        how = self.conditions(0)
        return self.held_out(name).measure(Checkpoint(model, how.objective), how)

    def _spent(self, cells: Path, seconds: float) -> None:
        path = cells / TIME
        before = read(Took, path).seconds if path.is_file() else 0.0
        files.write_json(path, {"seconds": round(before + seconds, 3)}, sealed=True)
