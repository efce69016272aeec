"""Build what a run evaluates after each domain, and the conditions of the evaluation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from torch import nn

from everlearn.config.arguments import training_arguments
from everlearn.data.blocks import PackedBlocks
from everlearn.data.loader import sample_batches
from everlearn.data.packing import blocks_of
from everlearn.data.prepare import cache_folder
from everlearn.errors import DataError, ModelError
from everlearn.evaluation.build import BASE
from everlearn.evaluation.task import Conditions, Task
from everlearn.methods.base import Batch, Method, Reading
from everlearn.methods.engine.protection import as_tested
from everlearn.predictors import Checkpoint, Predictor
from everlearn.run.held_out_sets import HeldOutSets
from everlearn.run.open_run import OpenRun
from everlearn.seeding import seed_for

MASKS = "evaluation"
"""Name that seeds the masks of held-out text: one for all runs, so that they are scored on the same labels."""


class EvaluatedModels(HeldOutSets):
    """The models of a run as they are evaluated: checkpoints, with what methods add at test time.

    Args:
        run: the open run.
    """

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run)
        self.device = training_arguments(self.recipe.train, self.folder.path, 0, 1).device
        self.bf16 = bool(self.recipe.train.get("bf16", False))

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

    def shared_folder(self) -> Path:
        """Return the folder in which runs share the base model's cells: beside the tokenised corpora."""
        return cache_folder(self.recipe.data.cache) / "cells"

    def label(self, row: int) -> str:
        """Return the name of a row in tables."""
        return BASE if row == 0 else self.domains[row - 1]

    def tested(self, row: int, name: str | None) -> nn.Module:
        """Return the model after `row` domains as it is evaluated on texts of a domain; None is general text.

        Raises:
            ModelError: the methods evaluate with several models.
        """
        predictor = self.text_predictor(row, name)
        if not isinstance(predictor, Checkpoint):
            what = type(predictor).__name__
            raise ModelError(f"After {self.label(row)} there is not one model to evaluate, but a {what} of several.")
        return predictor.model

    def text_predictor(self, row: int, name: str | None) -> Predictor:
        """Return the predictor after `row` domains for texts of a domain; None is general text."""
        if name is None and self.recipe.general is not None:
            name = self.recipe.general.name
        domain = name if name in self.domains else None
        return self.build_predictor(
            row, domain, lambda: self.load(row), self.test_time_methods(row), lambda: self._blocks(name)
        )

    def build_predictor(
        self,
        row: int,
        domain: str | None,
        model: Callable[[], nn.Module],
        methods: Sequence[Method],
        blocks: Callable[[], PackedBlocks],
    ) -> Predictor:
        """Build the predictor: the checkpoint, or what methods with an evaluation of their own put in its place."""
        objective = self.conditions(row).objective
        if not methods:
            return Checkpoint(model(), objective)
        reading = self._reading(row, domain, model, blocks)
        put_back = functools.partial(as_tested, methods, reading=reading)
        predictor: Predictor = Checkpoint(put_back(self.load(row)), objective)
        return _replaced_by(methods, predictor, reading)

    def load(self, row: int) -> nn.Module:
        """Load the checkpoint after `row` domains to the device."""
        return self.run.model_after(row).to(self.device)

    def test_time_methods(self, row: int) -> list[Method]:
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

    def task_predictor(self, row: int, task: Task, model: nn.Module, methods: Sequence[Method]) -> Predictor:
        """Return the predictor of an end task; methods that adapt to a text get the task's own, without labels."""
        objective, format_ = self.conditions(row).objective, self.run.setting()
        if not methods:
            return Checkpoint(model, objective)

        def texts() -> PackedBlocks:
            blocks = blocks_of(task.texts(), format_.tokenizer, format_.kind, format_.block_size)
            return PackedBlocks.from_blocks(blocks, 0, task.name)

        reading = self._reading(row, task.domain, lambda: model, texts)
        put_back = functools.partial(as_tested, methods, reading=reading)
        # A task that fine-tunes prepares its own copies, so it needs no prepared language model.
        language = model if task.fine_tunes else put_back(self.load(row))
        return _replaced_by(methods, Checkpoint(language, objective, plain=model, prepare=put_back), reading)


def _replaced_by(methods: Sequence[Method], predictor: Predictor, reading: Reading) -> Predictor:
    """Return the predictor that the methods put in place of one checkpoint."""
    for method in methods:
        predictor = method.test_predictor(predictor, reading)
    return predictor
