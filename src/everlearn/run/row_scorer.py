"""Measure one checkpoint of a run on held-out text and end tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from everlearn import files
from everlearn.errors import DataError, ModelError, RunError
from everlearn.evaluation import Cell, make_task, set_path, task_path
from everlearn.evaluation.cell_cache import SharedCells
from everlearn.evaluation.task import TaskConfig
from everlearn.predictors import Checkpoint, Predictor
from everlearn.run.evaluated_models import EvaluatedModels
from everlearn.run.forecast import SAMPLES, SETS
from everlearn.run.measurement_plan import wanted_sets
from everlearn.run.progress import Counted
from everlearn.tasks.batched_scoring import measure_together
from everlearn.tasks.held_out import HeldOutText, blocks_in
from everlearn.tasks.samples import Samples, samples_path


class RowScorer:
    """Measure the missing cells of one row of the score matrix.

    Args:
        models: the models of the run, and the conditions of the evaluation.
        row: number of domains that the checkpoint has learnt; 0 is the base model.
        model: the checkpoint.
        description: the checkpoint in words, such as "after news".
    """

    def __init__(self, models: EvaluatedModels, row: int, model: nn.Module, description: str) -> None:
        self.models, self.run, self.row, self.model, self.description = models, models.run, row, model, description
        self.conditions, self.methods = models.conditions(row), models.test_time_methods(row)
        self.cells = self.run.folder.path / "evaluation"
        self.shared = SharedCells(models.shared_folder(), model) if row == 0 and not self.methods else None

    def measure_text(self, sets: Sequence[str], samples: Sequence[str]) -> None:
        """Score held-out sets, and generate samples for some.

        With methods that evaluate with more than the checkpoint, the predictor differs from set to set. Otherwise one
        pass scores all sets.
        """
        together, apart = ([], sets) if self.methods else (sets, [])
        size = self.run.recipe.evaluation.samples
        total = sum(blocks_in(self.models.held_out(name).path) for name in sets) + size * len(samples)
        if not total:
            return
        with self.run.reporter.activity(f"Held-out text, {self.description}", total) as tell:
            done = Counted(tell)
            self._measure_together(together, done)
            for name in dict.fromkeys([*apart, *samples]):
                self._measure_apart(name, name in apart, name in samples, done)

    def _measure_together(self, missing: Sequence[str], done: Counted) -> None:
        """Score the missing held-out sets of a plain checkpoint in one pass, in batches that may span two sets."""
        moments = [time.monotonic()]

        def keep(cell: Cell, *, cached: bool = False) -> None:
            self._keep_text(cell)
            moments.append(time.monotonic())
            self.run.took(SETS, 1, None if cached else moments[-1] - moments[-2])

        def sets() -> Iterator[tuple[HeldOutText, bool]]:
            for name in wanted_sets(self.run.recipe, self.row):
                task, needed = self.models.held_out(name), name in missing
                if (
                    needed
                    and self.shared is not None
                    and (there := self.shared.find(task, self.conditions)) is not None
                ):
                    keep(there, cached=True)
                    done.more(len(task.held_out.blocks))
                    needed = False
                elif needed and self.shared is not None:
                    new[name] = task
                yield task, needed

        def keep_new(cell: Cell) -> None:
            keep(cell)
            if self.shared is not None:
                self.shared.keep(new.pop(cell.task), self.conditions, cell)

        new: dict[str, HeldOutText] = {}
        if missing:
            measure_together(
                sets(), Checkpoint(self.model, self.conditions.objective), self.conditions, keep_new, done.more
            )

    def _measure_apart(self, name: str, scored: bool, sampled: bool, done: Counted) -> None:
        """Score one held-out set and generate samples for it, with a predictor that is built once."""
        task, started = self.models.held_out(name), time.monotonic()
        predictor = self.models.build_predictor(
            self.row, task.domain, lambda: self.model, self.methods, lambda: task.held_out.blocks
        )
        if scored:
            self._keep_text(task.measure(predictor, replace(self.conditions, progress=done.part())))
            now = time.monotonic()
            self.run.took(SETS, 1, now - started)
            started = now
        if sampled:
            size = self.run.recipe.evaluation.samples
            self._sample(Samples(task.path, task.domain, size), predictor)
            done.more(size)
            self.run.took(SAMPLES, 1, time.monotonic() - started)

    def _keep_text(self, cell: Cell) -> None:
        cell.save(set_path(self.cells, self.row, cell.task))

    def _sample(self, task: Samples, predictor: Predictor) -> None:
        try:
            task.measure(predictor, self.conditions).save(samples_path(self.cells, self.row, task.name))
        except ModelError as error:
            # No score depends on samples, so a report without them is no reason to stop.
            self.run.reporter.say(f"Samples of '{task.name}' are left out in row {self.row}: {error}")

    def measure_task(self, config: TaskConfig) -> None:
        """Measure an end task, unless its files are gone."""
        task, place = make_task(config), task_path(self.cells, self.row, config.name)
        try:
            work = task.work(len(self.conditions.seeds))
        except DataError as error:
            if not task_path(self.cells, 0, config.name).is_file():
                raise
            refuse_damaged(place, str(error))
            # The labelled files of an earlier task are gone: that must not prevent learning a new domain.
            self.run.reporter.say(f"End task '{config.name}' is left out {self.description}: {error}")
            return
        if self.shared is not None and (cached := self.shared.find(task, self.conditions)) is not None:
            cached.save(place)
            self.run.took(task.name, 1, None)
            return
        started = time.monotonic()
        predictor = self.models.task_predictor(self.row, task, self.model, self.methods)
        with self.run.reporter.activity(f"End task {config.name}, {self.description}", work.units) as done:
            cell = task.measure(predictor, replace(self.conditions, progress=done))
        cell.save(place)
        self.run.took(task.name, 1, time.monotonic() - started)
        if self.shared is not None:
            self.shared.keep(task, self.conditions, cell)


def damage_of(cell: Path) -> str | None:
    """Return a description of the damage of a cell, by its seal or, if it is not listed there, by reading it."""
    if cell.name in files.listed(cell.parent):
        return files.fault(cell)
    try:
        Cell.load(cell)
    except RunError as error:
        return str(error).removesuffix(".")
    return None


def refuse_damaged(cell: Path, why: str) -> None:
    """Raise ``RunError`` if a cell that cannot be measured again exists and is damaged."""
    if cell.is_file() and (wrong := damage_of(cell)) is not None:
        raise RunError(
            f"{wrong}, and cannot be measured again: {why} Restore it from a copy, or remove it to do without."
        )
