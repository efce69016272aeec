"""Fine-tune a copy of the model on a task of GLUE, and score it as GLUE does (arXiv 1804.07461).

The eight classification tasks are learnt with cross-entropy, STS-B with one output and the mean squared error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from everlearn.data.blocks import hash_of
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.fine_tuning import by_seed, options_of, steps_of
from everlearn.tasks.glue_formats import FORMATS, GlueTask
from everlearn.tasks.glue_reader import GlueSets, read_glue
from everlearn.tasks.labelled import notes_on
from everlearn.wording import count


@register_kind(GlueTask)
class GlueEvaluation(Task):
    """Fine-tune a copy once for each seed and predict the validation part."""

    kind = "glue"
    fine_tunes = True
    config: GlueTask

    @cached_property
    def sets(self) -> GlueSets:
        """Return the examples; raise ``DataError`` if they cannot be read."""
        return read_glue(self.config)

    def check(self) -> str:
        labels = len(self.sets.train.label_names)
        kind = count(labels, "label") if labels else "values from 0 to 5"
        return f"{len(self.sets.train):,} to learn from, {len(self.sets.test):,} to test, {kind}"

    def notes(self) -> list[str]:
        overlap = notes_on(self.name, self.sets.train, self.sets.test) if self.sets.train.label_names else []
        return [*self.sets.notes, *overlap]

    def fingerprint(self) -> str:
        options = self.config.model_dump_json(exclude={"name", "domain", "path"})
        parts = [(part.texts, part.pairs, part.labels.tolist()) for part in (self.sets.train, self.sets.test)]
        return hash_of(self.kind, options, *parts)

    def texts(self) -> Sequence[str]:
        return self.sets.train.whole_texts()

    def examples(self) -> Sequence[str]:
        return self.sets.test.whole_texts()

    def work(self, seeds: int) -> Work:
        steps = seeds * steps_of(self.config, self.sets.train)
        rows = seeds * len(self.sets.test)
        return Work(units=steps, rows=rows, trained=steps * self.config.batch_size, tokens=self.config.max_length)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        form, (train, test, part, _) = FORMATS[self.config.task], self.sets
        tokenizer, options = conditions.tokenizer, options_of(conditions)
        every = by_seed(predictor, tokenizer, self.config, train, test, conditions.seeds, **options)
        outcomes, properties = {"values": every[..., 0]}, {"target": test.labels}
        facts: dict[str, object] = {"scores": list(form.scores)}
        if form.labels:
            outcomes, properties = {"predictions": every.argmax(-1)}, {"truth": test.labels}
            facts |= {"classes": list(range(len(form.labels))), "positive": 1}
        if len(form.tests) > 1:
            properties["mismatched"] = part
        return Cell(
            self.kind, self.name, conditions.row, outcomes, properties, facts, conditions.seeds,
            fingerprint=self.fingerprint(),
        )  # fmt: skip
