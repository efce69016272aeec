"""The kind of end task that is a JSON task of BIG-bench (arXiv 2206.04615).

Where options have scores the likeliest option after the prompt is chosen, log p(o | x) = Σ_i log p(o_i | x, o_<i), and
its score counts (``multiple_choice_grade``). Written answers, by greedy decoding, count where they equal a target
(``exact_match``). ``normalised`` is made of the score that the task prefers
(:mod:`everlearn.tasks.big_bench_scores`).
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
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.big_bench_reader import CHOICE, EXACT, ROUGE, BigBenchTask, Prompted, Subtask, read_big_bench
from everlearn.tasks.big_bench_scores import limits
from everlearn.tasks.choice import option_nats
from everlearn.tasks.generation import written
from everlearn.tasks.prompted import check_writes
from everlearn.tasks.text_match import exact_match, rouge_l

_BYTES_PER_TOKEN = 4
"""About, for a plan."""
OUTCOME = {CHOICE: "grade", EXACT: "exact_match", ROUGE: "rouge_l"}
"""What cells call what is measured."""


@register_kind(BigBenchTask)
class BigBench(Task):
    """Chooses options and writes answers, as the task's metrics ask for it."""

    kind = "big-bench"

    def __init__(self, config: BigBenchTask) -> None:
        self.name, self.domain, self.config = config.name, config.domain, config

    @cached_property
    def subtasks(self) -> list[Subtask]:
        """What it is made of; raises ``DataError``."""
        return read_big_bench(self.config)

    @cached_property
    def shown(self) -> list[Prompted]:
        """The examples of all subtasks, one subtask after another."""
        return [example for subtask in self.subtasks for example in subtask.examples]

    @cached_property
    def measured(self) -> list[str]:
        """Metrics, by BIG-bench's names: those asked for, or those that every subtask names and can be measured.

        Raises:
            DataError: there is none, or options are asked for where examples have none.
        """
        common = set.intersection(*({*subtask.metrics} for subtask in self.subtasks))
        found = [name for name in OUTCOME if name in (self.config.metrics or common)]
        if not found:
            raise DataError(
                f"End task '{self.name}': its files name no metric that is measured here ({', '.join(OUTCOME)}). Set "
                "its `metrics`."
            )
        if CHOICE in found and not all(example.options for example in self.shown):
            raise DataError(
                f"End task '{self.name}': {CHOICE} needs `target_scores` in every example. Leave it out of `metrics`."
            )
        return found

    @cached_property
    def score(self) -> str:
        """The metric that is normalised: the one that the task prefers, or the first of those that are measured."""
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
        wanted = sorted({s.preferred for s in self.subtasks if self._ours(s.preferred) != self.score})
        if not wanted:
            return []
        return [
            f"End task '{self.name}' prefers {' and '.join(name or 'no metric' for name in wanted)}; its normalised "
            f"score is of {self.score}."
        ]

    def check_model(self, kind: Kind) -> None:
        if self.measured != [CHOICE]:
            check_writes(self.config, kind)

    @cached_property
    def limits(self) -> list[tuple[float, float]]:
        """The scores that count as 0 and as 100, of each subtask; raises ``DataError`` where they are no interval."""
        found = []
        for subtask in self.subtasks:
            # What a file says is of the metric that it prefers.
            own = (subtask.low, subtask.high) if self._ours(subtask.preferred) == self.score else (None, None)
            guessed = limits([example.scores for example in subtask.examples] if self.score == CHOICE else [])
            given = (self.config.low, self.config.high)
            low, high = (
                next(value for value in values if value is not None) for values in zip(given, own, guessed, strict=True)
            )
            if not low < high:
                raise DataError(
                    f"End task '{self.name}': the score that counts as 0 is {low:g} for '{subtask.name}', and {high:g} "
                    "counts as 100. Set its `low` and `high`."
                )
            found.append((low, high))
        return found

    def fingerprint(self) -> str:
        marks = self.config.model_dump_json(exclude={"name", "domain", "test"})
        examples = [(e.prompt, e.options, e.scores, e.targets) for e in self.shown]
        ways = [(s.name, len(s.examples), s.stop, s.regex) for s in self.subtasks]
        return hash_of(self.kind, marks, self.measured, self.score, self.limits, ways, examples)

    def texts(self) -> Sequence[str]:
        return [example.prompt for example in self.shown]

    def work(self, seeds: int) -> Work:
        sizes = [len(example.prompt.encode()) // _BYTES_PER_TOKEN + 1 for example in self.shown]
        passes = [len(example.options) if CHOICE in self.measured else 0 for example in self.shown]
        writes = self.measured != [CHOICE]
        tokens = sum(size * (own + writes) for size, own in zip(sizes, passes, strict=True))
        tokens += writes * len(sizes) * self.config.max_new_tokens
        rows = sum(passes) + writes * len(sizes)
        return Work(units=len(sizes) * ((CHOICE in self.measured) + writes), rows=rows, tokens=tokens // rows + 1)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        found: dict[str, Any] = {}
        numbers = np.repeat(np.arange(len(self.subtasks)), [len(s.examples) for s in self.subtasks])
        given: dict[str, Any] = {"subtask": numbers}
        texts: list[str] = []
        if CHOICE in self.measured:
            questions = [[(example.prompt, option) for option in example.options] for example in self.shown]
            nats, _ = option_nats(self.config, predictor, conditions, questions)
            scores = np.zeros(nats.shape)
            for number, example in enumerate(self.shown):
                scores[: len(example.scores), number] = example.scores
            chosen = np.argmin(nats, axis=0)
            found |= {"option_nats": nats, "grade": np.take_along_axis(scores, chosen[None], axis=0)[0]}
            given["option_scores"] = scores
        if self.measured != [CHOICE]:
            # A blank at a prompt's end belongs to the answer, as where options are scored.
            how = conditions
            if CHOICE in self.measured and (told := conditions.progress) is not None:
                how = replace(conditions, progress=lambda done: told(len(self.shown) + done))
            whole = written(self.config, [e.prompt.rstrip() for e in self.shown], predictor, how)
            texts = [self.subtasks[number].said(text) for number, text in zip(numbers, whole, strict=True)]
            pairs = list(zip(texts, self.shown, strict=True))
            if EXACT in self.measured:
                found["exact_match"] = np.array([exact_match(text, e.targets) for text, e in pairs], np.float64)
            if ROUGE in self.measured:
                found["rouge_l"] = np.array([rouge_l(text, e.targets) for text, e in pairs], np.float64)
        found["score"] = found[OUTCOME[self.score]]
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
            found,
            given,
            facts,
            texts=tuple(texts),
            fingerprint=self.fingerprint(),
        )

    @staticmethod
    def _ours(name: str) -> str:
        """What a metric of theirs is called here."""
        return ROUGE if name.lower().startswith("rouge") else name
