"""Evaluate by fine-tuning a classifier (DAS, arXiv 2302.03241)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from everlearn.data.blocks import hash_of
from everlearn.errors import DataError
from everlearn.evaluation.cell import CLASSIFICATION, Cell
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.fine_tuning import evaluate_task, options_of, steps_of
from everlearn.tasks.labelled import EndTask, LabelledSet, check_test_apart, notes_on, read_end_task
from everlearn.wording import count, percent


@register_kind(EndTask)
class Classification(Task):
    """Fine-tune a copy of the model on labelled text, once for each seed, and predict the test part."""

    kind = CLASSIFICATION
    fine_tunes = True
    config: EndTask

    @cached_property
    def sets(self) -> tuple[LabelledSet, LabelledSet]:
        """Return the training and the test part; raise ``DataError`` if they cannot be read."""
        return read_end_task(self.config)

    def check(self) -> str:
        check_test_apart(self.config)
        train, test = self.sets
        best, often = self.config.state_of_the_art, np.bincount(test.labels).max() / len(test)
        if best is not None and self.config.majority is None and often >= best:
            raise DataError(
                f"End task '{self.name}': the most frequent label is right in {percent(often)} of the test part, and "
                f"`state_of_the_art` ({best}) must be above that. Correct it, or set `majority` too."
            )
        return f"{len(train):,} to learn from, {len(test):,} to test, {count(len(train.label_names), 'label')}"

    def notes(self) -> list[str]:
        return notes_on(self.name, *self.sets)

    def fingerprint(self) -> str:
        scale = {
            "majority",
            "state_of_the_art",
        } - self.config.scale.keys()  # options that are not set do not change the fingerprint
        options = self.config.model_dump_json(exclude={"name", "domain", "train", "test", *scale})
        parts = [(part.texts, part.pairs, part.labels.tolist(), part.label_names) for part in self.sets]
        return hash_of(self.kind, options, *parts)

    def texts(self) -> Sequence[str]:
        return self.sets[0].whole_texts()

    def examples(self) -> Sequence[str]:
        return self.sets[1].whole_texts()

    def work(self, seeds: int) -> Work:
        train, test = self.sets
        steps = steps_of(self.config, train)
        trained = seeds * steps * self.config.batch_size
        return Work(units=seeds * steps, rows=seeds * len(test), trained=trained, tokens=self.config.max_length)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        cell = evaluate_task(
            predictor, conditions.tokenizer, self.config, *self.sets, conditions.seeds, **options_of(conditions)
        )
        facts = {**cell.facts, **self.config.scale}
        return replace(cell, row=conditions.row, facts=facts, fingerprint=self.fingerprint())
