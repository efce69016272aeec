"""Evaluate the checkpoints of a run: find the missing cells and measure each.

Held-out blocks are drawn once and kept in the run folder. A domain can thus be added months later, and forgetting of
the old domains measured, without any of the old corpora.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from everlearn import files
from everlearn.config.arguments import training_arguments
from everlearn.data.blocks import PackedBlocks
from everlearn.data.loader import sample_batches
from everlearn.data.packing import blocks_of
from everlearn.data.prepare import cache_folder
from everlearn.data.tokenize import Encoder
from everlearn.data.windows import Windows
from everlearn.errors import DataError, EverlearnError, ModelError, RunError
from everlearn.evaluation import Cell, alone_path, make_task, set_path, task_path
from everlearn.evaluation.build import BASE
from everlearn.evaluation.cell_cache import SharedCells
from everlearn.evaluation.held_out_rows import facts_of_rows
from everlearn.evaluation.results import Took, read
from everlearn.evaluation.task import Conditions, Task, TaskConfig
from everlearn.methods.base import Batch, Method, Reading
from everlearn.methods.engine.protection import as_tested
from everlearn.predictors import Checkpoint, Predictor
from everlearn.run.folder import TIME
from everlearn.run.forecast import SAMPLES, SETS
from everlearn.run.measurement_plan import held_out_names, wanted_sets, wanted_tasks
from everlearn.run.open_run import OpenRun
from everlearn.run.progress import Counted
from everlearn.seeding import seed_for
from everlearn.tasks.batched_scoring import measure_together
from everlearn.tasks.held_out import HeldOut, HeldOutText, blocks_in
from everlearn.tasks.samples import Samples, samples_path

MASKS = "evaluation"
"""Name that seeds the masks of held-out text: one for all runs, so that they are scored on the same labels."""


class Scorer:
    """Evaluate the checkpoints of one run.

    Args:
        run: the open run.
    """

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        self.recipe = run.recipe
        self.folder = run.folder
        self.cells = run.folder.path / "evaluation"
        self.domains = [domain.name for domain in self.recipe.domains]
        self.device = training_arguments(self.recipe.train, self.folder.path, 0, 1).device
        self.bf16 = bool(self.recipe.train.get("bf16", False))

    # -- held-out text and conditions -------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the columns of held-out text: domains with held-out text, then the general text."""
        return held_out_names(self.recipe)

    def held_out(self, name: str) -> HeldOutText:
        """Return the held-out blocks of a domain: those in the run folder, or else a seeded sample, which is saved."""
        path = self._set(name)
        if not path.is_file():
            self._draw(name)
        return HeldOutText(path, name if name in self.domains else None, content=self.recipe.evaluation.content)

    def _draw(self, name: str) -> None:
        """Save a seeded sample of a domain's held-out blocks."""
        prepared = self.run.prepared(name)
        if prepared.validation is None:
            raise DataError(f"'{name}' holds out no text to measure on (`validation`).")
        blocks: PackedBlocks | Windows = prepared.validation
        format_ = self.run.setting()
        encoder = Encoder(format_.tokenizer, format_.kind)
        stride = self.recipe.evaluation.stride
        if stride is not None and "labels" not in prepared.validation.arrays:  # answers are scored in their rows
            blocks = Windows(prepared.validation, stride, encoder.end or 0)
        order = np.random.Generator(np.random.PCG64(seed_for("held out", name))).permutation(len(blocks))
        chosen = np.sort(order[: self.recipe.evaluation.blocks])
        sample = PackedBlocks.from_blocks(blocks.take(chosen), seed=0, name=name)
        one_source = not next(corpus for corpus in self.run.corpora if corpus.name == name).sources
        rows = facts_of_rows(blocks, chosen, encoder, prepared.bytes_per_token, in_order=one_source)
        HeldOut(sample, prepared.bytes_per_token, rows).save(self._set(name))

    def prepare(self) -> None:
        """Read on every process the texts whose held-out blocks are not drawn yet, and replace damaged blocks.

        Reading a text waits for all processes, and :meth:`score` draws in one process only, so the texts must be read
        before.

        Raises:
            RunError: held-out blocks are damaged, and their text is gone or has changed.
        """
        wrong = {name: files.fault(self._set(name)) for name in self.names()}
        missing = [name for name in self.names() if not self._set(name).is_file()]
        self.run.processes.wait_for_everyone()  # every process must have looked before one of them writes
        for name in self.names():
            if name in missing:
                self.run.prepared(name)
            elif (fault := wrong[name]) is not None:
                self._draw_again(name, fault)
        self.run.processes.wait_for_everyone()

    def _draw_again(self, name: str, wrong: str) -> None:
        path = self._set(name)
        meant = files.listed(path.parent)[path.name]
        try:
            self.run.prepared(name)
        except EverlearnError as error:
            raise RunError(
                f"{wrong}, and the text that it was drawn from can no longer be read: {error} Restore one of them "
                "from a copy: without it later models cannot be compared with earlier ones."
            ) from None
        if self.run.processes.is_main_process:
            self.run.reporter.say(f"{wrong}. It is drawn again.")
            self._draw(name)
            if files.digest(path) != meant:
                files.write_json(path.parent / files.SEAL, {**files.listed(path.parent), path.name: meant})
                raise RunError(
                    f"{wrong}, and the text of '{name}' is not what it was drawn from. Restore one of them from a "
                    "copy: without it later models cannot be compared with earlier ones."
                )

    def _set(self, name: str) -> Path:
        return self.folder.sets / f"{name}.safetensors"

    def conditions(self, row: int) -> Conditions:
        """Return the conditions of an evaluation after `row` domains."""
        format_ = self.run.setting()
        evaluation = self.recipe.evaluation
        return Conditions(
            row=self.label(row),
            tokenizer=format_.tokenizer,
            objective=format_.objective.reseeded(MASKS),
            batch_size=evaluation.batch_size,
            seeds=tuple(seed_for("end task", number) % 2**31 for number in range(evaluation.end_task_seeds)),
            device=self.device,
            bf16=self.bf16,
        )

    def label(self, row: int) -> str:
        """Return the name of a row in tables."""
        return BASE if row == 0 else self.domains[row - 1]

    # -- predictors -------------------------------------------------------------------------------------------

    def tested(self, row: int, name: str | None) -> nn.Module:
        """Return the model after `row` domains as it is evaluated on texts of a domain; None is general text.

        Raises:
            ModelError: the methods evaluate with several models.
        """
        predictor = self.predictor(row, name)
        if not isinstance(predictor, Checkpoint):
            what = type(predictor).__name__
            raise ModelError(f"After {self.label(row)} there is not one model to evaluate, but a {what} of several.")
        return predictor.model

    def predictor(self, row: int, name: str | None) -> Predictor:
        """Return the predictor after `row` domains for texts of a domain; None is general text."""
        if name is None and self.recipe.general is not None:
            name = self.recipe.general.name
        domain = name if name in self.domains else None
        return self._predictor(row, domain, lambda: self._model(row), self._readers(row), lambda: self._blocks(name))

    def _predictor(
        self,
        row: int,
        domain: str | None,
        model: Callable[[], nn.Module],
        readers: Sequence[Method],
        blocks: Callable[[], PackedBlocks],
    ) -> Predictor:
        """Return the predictor: the checkpoint, or the one that a method with its own evaluation builds from it."""
        objective = self.conditions(row).objective
        if not readers:
            return Checkpoint(model(), objective)
        reading = self._reading(row, domain, model, blocks)
        put_back = functools.partial(as_tested, readers, reading=reading)
        predictor: Predictor = Checkpoint(put_back(self._model(row)), objective)
        return _asked(readers, predictor, reading)

    def _model(self, row: int) -> nn.Module:
        """Load the checkpoint after `row` domains to the device."""
        return self.run.model_after(row).to(self.device)

    def _readers(self, row: int) -> list[Method]:
        """Return the methods that evaluate with more than the saved checkpoint, with their memory."""
        return [method for method in self.run.methods_after(row) if not method.tested_as_saved]

    def _blocks(self, name: str | None) -> PackedBlocks:
        if name is None:
            raise DataError("A method selects by the text, and there is no general text (`general`). Name a domain.")
        return self.held_out(name).held_out.blocks

    def _reading(
        self, row: int, domain: str | None, model: Callable[[], nn.Module], blocks: Callable[[], PackedBlocks]
    ) -> Reading:
        """Return what a method may know of an evaluation after `row` domains; general text belongs to no domain."""
        objective = self.conditions(row).objective

        def batches(count: int) -> Iterator[Batch]:
            size = self.recipe.evaluation.batch_size
            return sample_batches(blocks(), objective, blocks=count, batch_size=size, seed=0, device=self.device)

        return Reading(
            domain=domain if domain in self.domains else None,
            learnt=tuple(self.domains[:row]),
            objective=objective,
            language_model=model,
            batches=batches,
            checkpoints=self.run.checkpoints(row + 1).on(self.device),
        )

    # -- one row ----------------------------------------------------------------------------------------------

    def score(self, row: int) -> None:
        """Measure the missing cells of the checkpoint after `row` domains; 0 is the base model."""
        if self.run.processes.is_main_process:
            self._score(row)
        self.run.processes.wait_for_everyone()

    def _score(self, row: int) -> None:
        sets = [name for name in wanted_sets(self.recipe, row) if self._to_measure(set_path(self.cells, row, name))]
        listed = wanted_tasks(self.recipe, row)
        tasks = [task for task in listed if self._to_measure(task_path(self.cells, row, task.name))]
        samples = self._samples(row)
        if not sets and not tasks and not samples:
            return
        started = time.monotonic()
        where = "the base model" if row == 0 else f"after {self.domains[row - 1]}"
        try:
            with self.run.reporter.activity(f"Loading {'' if row == 0 else 'the model '}{where}", 1) as loaded:
                model = self._model(row)
                loaded(1)
        except ModelError as error:
            gone = row > 0 and self.folder.without_weights(row, self.domains[row - 1])
            if not gone and (row > 0 or not self.folder.finished(1, self.domains[0])):
                raise
            if not sets and not tasks:
                return
            for path in (
                *(set_path(self.cells, row, n) for n in sets),
                *(task_path(self.cells, row, t.name) for t in tasks),
                *(samples_path(self.cells, row, n) for n in samples),
            ):
                self._cannot(path, str(error))
            # The model is no longer available: that must not prevent learning a new domain.
            who = "The base model" if row == 0 else f"The model after {self.domains[row - 1]}"
            self.run.reporter.say(f"{who} is not measured on new sets: {error}")
            return
        readers = self._readers(row)
        shared = SharedCells(self.shared_folder(), model) if row == 0 and not readers else None
        # With methods that evaluate with more than the checkpoint, the predictor differs from set to set. Otherwise one
        # pass scores all sets.
        apart = list(dict.fromkeys([*(sets if readers else []), *samples]))
        together = [] if readers else sets
        if together or apart:
            rows = {name: blocks_in(self.held_out(name).path) for name in {*together, *apart}}
            samples_of = self.recipe.evaluation.samples
            total = sum(rows[name] for name in together)
            total += sum(rows[n] * (bool(readers) and n in sets) + samples_of * (n in samples) for n in apart)
            with self.run.reporter.activity(f"Held-out text, {where}", total) as tell:
                done = Counted(tell)
                self._measure_together(row, together, model, shared, done)
                for name in apart:
                    self._measure_text(row, name, bool(readers) and name in sets, name in samples, model, readers, done)
        for config in tasks:
            self._end_task(row, config, model, readers, shared, where)
        self._spent(self.folder.row(row), time.monotonic() - started)

    def _to_measure(self, path: Path) -> bool:
        """Return whether a cell is missing or damaged; report the damage."""
        if not path.is_file():
            return True
        if (wrong := _damage(path)) is not None:
            self.run.reporter.say(f"{wrong}. It is measured again.")
        return wrong is not None

    def _cannot(self, path: Path, why: str) -> None:
        """Raise ``RunError`` if a cell that cannot be measured again exists and is damaged."""
        if path.is_file() and (wrong := _damage(path)) is not None:
            raise RunError(
                f"{wrong}, and cannot be measured again: {why} Restore it from a copy, or remove it to do without."
            )

    def _measure_together(
        self,
        row: int,
        missing: Sequence[str],
        model: nn.Module,
        shared: SharedCells | None,
        done: Counted,
    ) -> None:
        """Score the missing held-out sets of a plain checkpoint in one pass, in batches that may span two sets."""
        how, moments = self.conditions(row), [time.monotonic()]

        def keep(cell: Cell, *, found: bool = False) -> None:
            self._keep_text(row, cell)
            moments.append(time.monotonic())
            self.run.took(SETS, 1, None if found else moments[-1] - moments[-2])

        def sets() -> Iterator[tuple[HeldOutText, bool]]:
            for name in wanted_sets(self.recipe, row):
                task, wanted = self.held_out(name), name in missing
                if wanted and shared is not None and (there := shared.find(task, how)) is not None:
                    keep(there, found=True)
                    done.more(len(task.held_out.blocks))
                    wanted = False
                elif wanted and shared is not None:
                    new[name] = task
                yield task, wanted

        def keep_new(cell: Cell) -> None:
            keep(cell)
            if shared is not None:
                shared.keep(new.pop(cell.task), how, cell)

        new: dict[str, HeldOutText] = {}
        if missing:
            measure_together(sets(), Checkpoint(model, how.objective), how, keep_new, done.more)

    def _measure_text(
        self,
        row: int,
        name: str,
        scored: bool,
        sampled: bool,
        model: nn.Module,
        readers: Sequence[Method],
        done: Counted,
    ) -> None:
        """Score one held-out set and generate samples for it, with a predictor that is built once."""
        if not scored and not sampled:
            return
        task, started = self.held_out(name), time.monotonic()
        predictor = self._predictor(row, task.domain, lambda: model, readers, lambda: task.held_out.blocks)
        if scored:
            self._keep_text(row, task.measure(predictor, replace(self.conditions(row), progress=done.part())))
            now = time.monotonic()
            self.run.took(SETS, 1, now - started)
            started = now
        if sampled:
            self._sample(row, Samples(task.path, task.domain, self.recipe.evaluation.samples), predictor)
            done.more(self.recipe.evaluation.samples)
            self.run.took(SAMPLES, 1, time.monotonic() - started)

    def _keep_text(self, row: int, cell: Cell) -> None:
        cell.save(set_path(self.cells, row, cell.task))

    def _samples(self, row: int) -> list[str]:
        """Return the held-out sets whose generated samples are missing (`evaluation.samples`)."""
        if not self.recipe.evaluation.samples:
            return []
        return [name for name in wanted_sets(self.recipe, row) if self._to_measure(samples_path(self.cells, row, name))]

    def _sample(self, row: int, task: Samples, predictor: Predictor) -> None:
        try:
            task.measure(predictor, self.conditions(row)).save(samples_path(self.cells, row, task.name))
        except ModelError as error:
            # No score depends on samples, so a report without them is no reason to stop.
            self.run.reporter.say(f"Samples of '{task.name}' are left out in row {row}: {error}")

    def _end_task(
        self,
        row: int,
        config: TaskConfig,
        model: nn.Module,
        readers: Sequence[Method],
        shared: SharedCells | None,
        where: str,
    ) -> None:
        task, how = make_task(config), self.conditions(row)
        try:
            work = task.work(len(how.seeds))
        except DataError as error:
            if not task_path(self.cells, 0, config.name).is_file():
                raise
            self._cannot(task_path(self.cells, row, config.name), str(error))
            # The labelled files of an earlier task are gone: that must not prevent learning a new domain.
            self.run.reporter.say(f"End task '{config.name}' is left out {where}: {error}")
            return
        if shared is not None and (cached := shared.find(task, how)) is not None:
            self._keep(row, cached)
            self.run.took(task.name, 1, None)
            return
        started = time.monotonic()
        predictor = self._asked(row, task, model, readers)
        with self.run.reporter.activity(f"End task {config.name}, {where}", work.units) as done:
            cell = task.measure(predictor, replace(how, progress=done))
        self._keep(row, cell)
        self.run.took(task.name, 1, time.monotonic() - started)
        if shared is not None:
            shared.keep(task, how, cell)

    def _keep(self, row: int, cell: Cell) -> None:
        """Save the cell of an end task."""
        cell.save(task_path(self.cells, row, cell.task))

    def _asked(self, row: int, task: Task, model: nn.Module, readers: Sequence[Method]) -> Predictor:
        """Return the predictor of an end task; methods that adapt to a text get the task's own, without labels."""
        objective, format_ = self.conditions(row).objective, self.run.setting()
        if not readers:
            return Checkpoint(model, objective)

        def texts() -> PackedBlocks:
            blocks = blocks_of(task.texts(), format_.tokenizer, format_.kind, format_.block_size)
            return PackedBlocks.from_blocks(blocks, 0, task.name)

        reading = self._reading(row, task.domain, lambda: model, texts)
        put_back = functools.partial(as_tested, readers, reading=reading)
        # A task that fine-tunes prepares its own copies, so it needs no prepared language model.
        language = model if task.fine_tunes else put_back(self._model(row))
        return _asked(readers, Checkpoint(language, objective, plain=model, prepare=put_back), reading)

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

    def shared_folder(self) -> Path:
        """Return the folder in which runs share the base model's cells: beside the tokenised corpora."""
        return cache_folder(self.recipe.data.cache) / "cells"


def _damage(cell: Path) -> str | None:
    """Return a description of the damage of a cell, by its seal or, if it is not listed there, by reading it."""
    if cell.name in files.listed(cell.parent):
        return files.fault(cell)
    try:
        Cell.load(cell)
    except RunError as error:
        return str(error).removesuffix(".")
    return None


def _asked(methods: Sequence[Method], predictor: Predictor, reading: Reading) -> Predictor:
    """Return the predictor that the methods put in place of one checkpoint."""
    for method in methods:
        predictor = method.test_predictor(predictor, reading)
    return predictor
