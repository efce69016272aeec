"""Measure the online (prequential) codelength of a task's labels: bits to send them while a model learns from them.

For N examples in a random order, cut at s₁ < … < s_M = N,

    L = s₁ log₂ |Y| − Σ_{i≥2} log₂ p(y_{s_{i−1}+1 … s_i} | x; θ fitted on the first s_{i−1})

(Yogatama et al., arXiv 1901.11373; the cuts are those of MDL probing, Voita and Titov, arXiv 2003.12298). Fewer bits
mean that fewer examples were needed to learn the task. The difference to the base model's codelength measures transfer
as learning speed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from everlearn import wording
from everlearn.data.blocks import hash_of
from everlearn.errors import DataError
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import register_mean
from everlearn.evaluation.statistics import generator
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.fine_tuning import options_of, probabilities_after
from everlearn.tasks.labelled import CodelengthTask, LabelledSet, read_labelled

PERCENT = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, 25, 50, 100)
"""Cuts of the examples, in per cent."""
register_mean("codelength", "Online codelength", "code_bits", unit="bits/label", higher_is_better=False)


def cuts(examples: int) -> list[int]:
    """Return s₁ < … < s_M; equal cuts of a small set are merged."""
    return sorted({max(1, round(percent * examples / 100)) for percent in PERCENT})


@register_kind(CodelengthTask)
class Codelength(Task):
    """Fine-tune a fresh copy of the model on every prefix and score the labels that come next, for each seed.

    The seed also sets the order of the examples.
    """

    kind = "codelength"
    fine_tunes = True
    config: CodelengthTask

    @cached_property
    def labelled(self) -> LabelledSet:
        """Return all examples; raise ``DataError`` if they cannot be read."""
        examples = read_labelled(self.config)
        if len(examples) < 2:
            raise DataError(f"End task '{self.name}' has {len(examples)} example; a codelength needs two or more.")
        return examples

    def check(self) -> str:
        examples = self.labelled
        return (
            f"{len(examples):,} to learn from in {wording.count(len(cuts(len(examples))), 'part')}, "
            f"{wording.count(len(examples.label_names), 'label')}"
        )

    def fingerprint(self) -> str:
        examples, options = self.labelled, self.config.model_dump_json(exclude={"name", "domain", "train"})
        return hash_of(
            self.kind, options, examples.texts, examples.pairs, examples.labels.tolist(), examples.label_names
        )

    def texts(self) -> Sequence[str]:
        return self.labelled.whole_texts()

    def work(self, seeds: int) -> Work:
        count = len(self.labelled)
        steps = seeds * (len(cuts(count)) - 1) * self.config.steps
        return Work(steps, seeds * count, steps * self.config.batch_size, self.config.max_length)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        known, ends = self.labelled, cuts(len(self.labelled))
        uniform = math.log2(len(known.label_names))
        bits = np.full((len(conditions.seeds), len(known)), uniform)
        part = np.zeros(bits.shape, np.int64)
        for number, seed in enumerate(conditions.seeds):
            order = generator("codelength", seed).permutation(len(known))
            for place, (start, end) in enumerate(itertools.pairwise(ends)):
                done = (number * (len(ends) - 1) + place) * self.config.steps
                new = order[start:end]
                probabilities = probabilities_after(
                    predictor,
                    conditions.tokenizer,
                    self.config,
                    known.take(order[:start]),
                    known.take(new),
                    self.config.steps,
                    seed=seed,
                    **options_of(conditions, done),
                )
                right = probabilities[np.arange(len(new)), known.labels[new]]
                bits[number, new] = -np.log2(np.maximum(right, np.finfo(np.float64).tiny))
                part[number, new] = place + 1
        return Cell(
            self.kind,
            self.name,
            conditions.row,
            {"code_bits": bits, "part": part},
            {"truth": known.labels},
            {"cuts": ends, "uniform": uniform},
            conditions.seeds,
            fingerprint=self.fingerprint(),
        )
