"""Evaluate a JSON task of BIG-bench (arXiv 2206.04615).

If options have scores, the likeliest option after the prompt is chosen, log p(o | x) = Σ_i log p(o_i | x, o_<i), and
its score counts (``multiple_choice_grade``). Written answers, by greedy decoding, count if they equal a target
(``exact_match``). ``normalised`` is computed from the task's preferred score (:mod:`everlearn.tasks.big_bench_scores`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from everlearn import wording
from everlearn.data.blocks import hash_of
from everlearn.errors import DataError
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.task import BYTES_PER_TOKEN, Conditions, Task, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.big_bench_reader import CHOICE, EXACT, ROUGE, BigBenchTask, Prompted, Subtask, read_big_bench
from everlearn.tasks.big_bench_scores import limits
from everlearn.tasks.choice import option_nats
from everlearn.tasks.generation import written
from everlearn.tasks.prompted import check_writes
from everlearn.tasks.text_match import exact_match, rouge_l

OUTCOME = {CHOICE: "grade", EXACT: "exact_match", ROUGE: "rouge_l"}
"""BIG-bench's name of a metric → name of the outcome in a cell."""


@register_kind(BigBenchTask)
class BigBench(Task):
    """Choose options and generate answers, as the task's metrics require."""

    kind = "big-bench"
    config: BigBenchTask

    @cached_property
    def subtasks(self) -> list[Subtask]:
        """Return the subtasks; raise ``DataError`` if they cannot be read."""
        return read_big_bench(self.config)

    @cached_property
    def shown(self) -> list[Prompted]:
        """Return the examples of all subtasks, one subtask after another."""
        return [example for subtask in self.subtasks for example in subtask.examples]

    @cached_property
    def measured(self) -> list[str]:
        """Return the metrics by BIG-bench's names: those of the recipe, or those that all subtasks name and we support.

        Raises:
            DataError: there is no such metric, or options are to be scored and an example has none.
        """
        common = set.intersection(*({*subtask.metrics} for subtask in self.subtasks))
        metrics = [name for name in OUTCOME if name in (self.config.metrics or common)]
        if not metrics:
            raise DataError(
                f"End task '{self.name}': its files name no supported metric ({', '.join(OUTCOME)}). Set its `metrics`."
            )
        if CHOICE in metrics and not all(example.options for example in self.shown):
            raise DataError(
                f"End task '{self.name}': {CHOICE} needs `target_scores` in every example. Remove it from `metrics`."
            )
        return metrics

    @cached_property
    def score(self) -> str:
        """Return the metric to be normalised: the one that the task prefers, or the first of the measured ones."""
        preferred = {self._ours(subtask.preferred) for subtask in self.subtasks}
        return next((name for name in self.measured if preferred == {name}), self.measured[0])

    def check(self) -> str:
        limits = ", ".join(f"{low:.3g} to {high:.3g}" for low, high in dict.fromkeys(self.limits))
        several = f" in {wording.count(len(self.subtasks), 'subtask')}" if len(self.subtasks) > 1 else ""
        return (
            f"{wording.count(len(self.shown), 'example')}{several}; {', '.join(self.measured)}; "
            f"{self.score} from {limits}"
        )

    def notes(self) -> list[str]:
        preferred = sorted({s.preferred for s in self.subtasks if self._ours(s.preferred) != self.score})
        if not preferred:
            return []
        return [
            f"End task '{self.name}' prefers {' and '.join(name or 'no metric' for name in preferred)}; its normalised "
            f"score is of {self.score}."
        ]

    def check_model(self, kind: Kind) -> None:
        if self.measured != [CHOICE]:
            check_writes(self.config, kind)

    @cached_property
    def limits(self) -> list[tuple[float, float]]:
        """Return for each subtask the scores that count as 0 and as 100.

        Raises ``DataError`` unless the first is lower than the second.
        """
        bounds = []
        for subtask in self.subtasks:
            # The limits in a file belong to the metric that it prefers.
            own = (subtask.low, subtask.high) if self._ours(subtask.preferred) == self.score else (None, None)
            guessed = limits([example.scores for example in subtask.examples] if self.score == CHOICE else [])
            configured = (self.config.low, self.config.high)
            low, high = (
                next(value for value in values if value is not None)
                for values in zip(configured, own, guessed, strict=True)
            )
            if not low < high:
                raise DataError(
                    f"End task '{self.name}': for '{subtask.name}' a score of {low:g} would count as 0 and one of "
                    f"{high:g} as 100. Set its `low` and `high`."
                )
            bounds.append((low, high))
        return bounds

    def fingerprint(self) -> str:
        marks = self.config.model_dump_json(exclude={"name", "domain", "test"})
        examples = [(e.prompt, e.options, e.scores, e.targets) for e in self.shown]
        subtasks = [(s.name, len(s.examples), s.stop, s.regex) for s in self.subtasks]
        return hash_of(self.kind, marks, self.measured, self.score, self.limits, subtasks, examples)

    def texts(self) -> Sequence[str]:
        return [example.prompt for example in self.shown]

    def work(self, seeds: int) -> Work:
        sizes = [len(example.prompt.encode()) // BYTES_PER_TOKEN + 1 for example in self.shown]
        passes = [len(example.options) if CHOICE in self.measured else 0 for example in self.shown]
        writes = self.measured != [CHOICE]
        tokens = sum(size * (own + writes) for size, own in zip(sizes, passes, strict=True))
        tokens += writes * len(sizes) * self.config.max_new_tokens
        rows = sum(passes) + writes * len(sizes)
        return Work(units=len(sizes) * ((CHOICE in self.measured) + writes), rows=rows, tokens=tokens // rows + 1)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        outcomes: dict[str, Any] = {}
        numbers = np.repeat(np.arange(len(self.subtasks)), [len(s.examples) for s in self.subtasks])
        properties: dict[str, Any] = {"subtask": numbers}
        texts: list[str] = []
        if CHOICE in self.measured:
            questions = [[(example.prompt, option) for option in example.options] for example in self.shown]
            nats, _ = option_nats(self.config, predictor, conditions, questions)
            scores = np.zeros(nats.shape)
            for number, example in enumerate(self.shown):
                scores[: len(example.scores), number] = example.scores
            chosen = np.argmin(nats, axis=0)
            outcomes |= {"option_nats": nats, "grade": np.take_along_axis(scores, chosen[None], axis=0)[0]}
            properties["option_scores"] = scores
        if self.measured != [CHOICE]:
            # White space at a prompt's end belongs to the answer, as it does for options.
            how = conditions
            if CHOICE in self.measured and (progress := conditions.progress) is not None:
                how = replace(conditions, progress=lambda done: progress(len(self.shown) + done))
            answers = written(self.config, [e.prompt.rstrip() for e in self.shown], predictor, how)
            texts = [self.subtasks[number].answer_in(text) for number, text in zip(numbers, answers, strict=True)]
            pairs = list(zip(texts, self.shown, strict=True))
            if EXACT in self.measured:
                outcomes["exact_match"] = np.array([exact_match(text, e.targets) for text, e in pairs], np.float64)
            if ROUGE in self.measured:
                outcomes["rouge_l"] = np.array([rouge_l(text, e.targets) for text, e in pairs], np.float64)
        outcomes["score"] = outcomes[OUTCOME[self.score]]
        low, high = zip(*self.limits, strict=True)
        facts = {
            "subtasks": [subtask.name for subtask in self.subtasks],
            "scored": self.score,
            "low": list(low),
            "high": list(high),
            **({"targets": [list(example.targets) for example in self.shown]} if texts else {}),
        }
        return Cell(
            self.kind,
            self.name,
            conditions.row,
            outcomes,
            properties,
            facts,
            texts=tuple(texts),
            fingerprint=self.fingerprint(),
        )

    @staticmethod
    def _ours(name: str) -> str:
        """Return everlearn's name of a BIG-bench metric."""
        return ROUGE if name.lower().startswith("rouge") else name
