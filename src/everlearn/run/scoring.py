"""Scores of a run: which cells are missing, and how each is measured.

Held-out blocks are drawn once and kept in the run folder, so that months later a new domain can be learnt, and
forgetting of the old ones measured, without any old corpus.
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
from everlearn.data.endtask import TaskConfig
from everlearn.data.loader import sample_batches
from everlearn.data.packing import blocks_of
from everlearn.data.prepare import default_cache
from everlearn.errors import DataError, ModelError
from everlearn.evaluation import Cell, Checkpoint, HeldOut, HeldOutText, Predictor, make_task, set_path, task_path
from everlearn.evaluation.build import BASE
from everlearn.evaluation.shared import SharedCells
from everlearn.evaluation.task import Conditions, Task
from everlearn.methods.base import Batch, Method, Reading
from everlearn.run.folder import TIME
from everlearn.run.open_run import OpenRun
from everlearn.run.wanted import held_out_names, wanted_sets, wanted_tasks
from everlearn.seeding import seed_for

MASKS = "evaluation"
"""Seeds the masks of held-out text: the same for every run, so that runs are scored on the same labels."""


class Scorer:
    """Measures one run.

    Args:
        run: whose models are measured.
    """

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        self.recipe = run.recipe
        self.folder = run.folder
        self.cells = run.folder.path / "evaluation"
        self.domains = [domain.name for domain in self.recipe.domains]
        self.device = training_arguments(self.recipe.train, self.folder.path, 0, 1).device
        self.bf16 = bool(self.recipe.train.get("bf16", False))

    # -- what is measured -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Columns of held-out text: domains that hold something out, then the general text."""
        return held_out_names(self.recipe)

    def held_out(self, name: str) -> HeldOutText:
        """The held-out blocks of a domain: those that the run kept, or a seeded sample, kept from now on."""
        path = self._set(name)
        if not path.is_file():
            prepared = self.run.prepared(name)
            if prepared.validation is None:
                raise DataError(f"'{name}' holds out no text to measure on (`validation`).")
            blocks = prepared.validation
            order = np.random.Generator(np.random.PCG64(seed_for("held out", name))).permutation(blocks.size)
            chosen = np.sort(order[: self.recipe.evaluation.blocks])
            sample = PackedBlocks.from_blocks(blocks.take(chosen), seed=0, name=name)
            HeldOut(sample, prepared.bytes_per_token).save(path)
        return HeldOutText(path, name if name in self.domains else None)

    def prepare(self) -> None:
        """Read, on every process, the texts of which held-out blocks are still to be drawn.

        :meth:`score` draws them on one process alone, where processes that read a text cannot wait for each other.
        """
        for name in [name for name in self.names() if not self._set(name).is_file()]:
            self.run.prepared(name)

    def check_end_tasks(self) -> None:
        """Raise ``DataError`` for an end task that cannot be read, unless it was measured long ago, and ``ModelError``
        for one that the model cannot be asked."""
        for config in self.recipe.end_tasks:
            if not task_path(self.cells, 0, config.name).is_file():
                task = make_task(config)
                task.check_model(self.run.setting().kind)
                task.check()

    def _set(self, name: str) -> Path:
        return self.folder.sets / f"{name}.safetensors"

    def conditions(self, row: int) -> Conditions:
        """How a task is measured after `row` domains."""
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
        """What tables call a row."""
        return BASE if row == 0 else self.domains[row - 1]

    # -- who is measured --------------------------------------------------------------------------------------

    def tested(self, row: int, name: str | None) -> nn.Module:
        """The model after `row` domains as it reads texts of a domain; None is general text."""
        predictor = self.predictor(row, name)
        if not isinstance(predictor, Checkpoint):
            what = type(predictor).__name__
            raise ModelError(f"What is tested after {self.label(row)} is no single model but a {what}.")
        return predictor.model

    def predictor(self, row: int, name: str | None) -> Predictor:
        """What answers after `row` domains for texts of a domain; None is general text."""
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
        """The checkpoint itself, or where methods read a text with more, what they make of fresh copies of it."""
        objective = self.conditions(row).objective
        if not readers:
            return Checkpoint(model(), objective)
        reading = self._reading(row, domain, model, blocks)
        put_back = functools.partial(_as_tested, readers, reading=reading)
        predictor: Predictor = Checkpoint(put_back(self._model(row)), objective)
        return _asked(readers, predictor, reading)

    def _model(self, row: int) -> nn.Module:
        """The plain checkpoint after `row` domains."""
        return self.run.model_after(row).to(self.device)

    def _readers(self, row: int) -> list[Method]:
        """The methods that read a text with more than the checkpoint, with what they remember."""
        return [method for method in self.run.methods_after(row) if not method.tested_as_saved]

    def _blocks(self, name: str | None) -> PackedBlocks:
        if name is None:
            raise DataError("A method chooses by the text, and there is no general text (`general`). Name a domain.")
        return self.held_out(name).held_out.blocks

    def _reading(
        self, row: int, domain: str | None, model: Callable[[], nn.Module], blocks: Callable[[], PackedBlocks]
    ) -> Reading:
        """What a method is told of a test after `row` domains; general text is of no domain."""
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
            checkpoints=self.run.checkpoints(row + 1),
        )

    # -- one row ----------------------------------------------------------------------------------------------

    def score(self, row: int) -> None:
        """Measure what is missing of the checkpoint after `row` domains; 0 is the base model."""
        if self.run.processes.is_main_process:
            self._score(row)
        self.run.processes.wait_for_everyone()

    def _score(self, row: int) -> None:
        sets = [name for name in wanted_sets(self.recipe, row) if not set_path(self.cells, row, name).is_file()]
        tasks = [task for task in wanted_tasks(self.recipe, row) if not task_path(self.cells, row, task.name).is_file()]
        if not sets and not tasks:
            return
        started = time.monotonic()
        where = "the base model" if row == 0 else f"after {self.domains[row - 1]}"
        try:
            model = self._model(row)
        except ModelError as error:
            gone = row > 0 and self.folder.without_weights(row, self.domains[row - 1])
            if not gone and (row > 0 or not self.folder.finished(1, self.domains[0])):
                raise
            # Learnt from long ago and not to be had any more: that is no reason not to learn a new domain.
            who = "The base model" if row == 0 else f"The model after {self.domains[row - 1]}"
            self.run.reporter.say(f"{who} is not measured on new sets: {error}")
            return
        readers = self._readers(row)
        shared = SharedCells(self.shared_folder(), model) if row == 0 and not readers else None
        if sets:
            with self.run.reporter.activity(f"Held-out text, {where}", len(sets)) as done:
                for index, name in enumerate(sets, 1):
                    self._measure_text(row, name, model, readers, shared).save(set_path(self.cells, row, name))
                    done(index)
        for config in tasks:
            self._end_task(row, config, model, readers, shared, where)
        self._spent(row, time.monotonic() - started)

    def _measure_text(
        self, row: int, name: str, model: nn.Module, readers: Sequence[Method], shared: SharedCells | None
    ) -> Cell:
        task, how = self.held_out(name), self.conditions(row)
        if shared is not None and (found := shared.find(task, how)) is not None:
            return found
        predictor = self._predictor(row, task.domain, lambda: model, readers, lambda: task.held_out.blocks)
        cell = task.measure(predictor, how)
        if shared is not None:
            shared.keep(task, how, cell)
        return cell

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
            # Learnt long ago and its labelled files are gone: that is no reason not to learn a new domain.
            self.run.reporter.say(f"End task '{config.name}' is left out {where}: {error}")
            return
        path = task_path(self.cells, row, config.name)
        if shared is not None and (found := shared.find(task, how)) is not None:
            found.save(path)
            return
        predictor = self._asked(row, task, model, readers)
        with self.run.reporter.activity(f"End task {config.name}, {where}", work.units) as done:
            cell = task.measure(predictor, replace(how, progress=done))
        cell.save(path)
        if shared is not None:
            shared.keep(task, how, cell)

    def _asked(self, row: int, task: Task, model: nn.Module, readers: Sequence[Method]) -> Predictor:
        """What answers an end task: with methods that read with more, they are given the task's own unlabelled text."""
        objective, format_ = self.conditions(row).objective, self.run.setting()
        if not readers:
            return Checkpoint(model, objective)

        def texts() -> PackedBlocks:
            found = blocks_of(task.texts(), format_.tokenizer, format_.kind, format_.block_size)
            return PackedBlocks.from_blocks(found, 0, task.name)

        reading = self._reading(row, task.domain, lambda: model, texts)
        put_back = functools.partial(_as_tested, readers, reading=reading)
        # Only a task that asks the language model itself needs it with what the methods put back.
        language = model if task.fine_tunes else put_back(self._model(row))
        return _asked(readers, Checkpoint(language, objective, plain=model, prepare=put_back), reading)

    def score_alone(self, name: str, place: Path) -> None:
        """Measure a domain's model that was trained alone."""
        path = self.cells / "alone" / f"{name}.safetensors"
        if self.run.processes.is_main_process and not path.is_file():
            model = self.run.load(place).to(self.device)
            self._losses(model, name).save(path)
        self.run.processes.wait_for_everyone()

    def _losses(self, model: nn.Module, name: str) -> Cell:
        """A model's cell of a held-out set, whoever's model it is."""
        how = self.conditions(0)
        return self.held_out(name).measure(Checkpoint(model, how.objective), how)

    def _spent(self, row: int, seconds: float) -> None:
        path = self.folder.row(row) / TIME
        before = files.read_json(path)["seconds"] if path.is_file() else 0.0
        files.write_json(path, {"seconds": round(before + seconds, 3)})

    def shared_folder(self) -> Path:
        """Where runs leave base scores for each other: beside the tokenised corpora."""
        cache = self.recipe.data.cache
        return (default_cache() if cache is None else Path(cache).expanduser()) / "cells"


def _as_tested(methods: Sequence[Method], model: nn.Module, reading: Reading) -> nn.Module:
    """A fresh copy of the checkpoint, as the methods read a text with it."""
    for method in methods:
        model = method.test_model(model, reading)
    return model


def _asked(methods: Sequence[Method], predictor: Predictor, reading: Reading) -> Predictor:
    """What the methods let answer in place of one checkpoint."""
    for method in methods:
        predictor = method.test_predictor(predictor, reading)
    return predictor
