"""Evaluate multiple choice: the answer is the option that is likeliest after the prompt.

An option o of tokens o_1 … o_m after the prompt x has log p(o | x) = Σ_i log p(o_i | x, o_<i). The answer is the option
with the largest log p(o | x) (metric ``choice_accuracy``; lm_eval's acc), the largest log p(o | x) per byte of its
UTF-8 text (``choice_accuracy_per_byte``; lm_eval's acc_norm, which counts characters: the same for ASCII), or the
largest per token (``choice_accuracy_per_token``; GPT-3, arXiv 2005.14165, section 2.4). Ties go to the first option.

The tokenisation of prompt and option follows the model's objective. Under a causal objective both are one text: the
option's tokens are those after the prompt's, and white space at the prompt's end belongs to the option (as in lm_eval).
Under text-to-text they are tokenised apart, and the end-of-answer token is scored with the option. A masked model reads
the prompt, also tokenised apart, followed by the same number of masks for every option. The option's tokens and an end
token are predicted at the first of these masks, all at once: Σ_i log p(o_i | x) (arXiv 2001.07676 and 2009.07118).

A schema task reverses this: one text is scored after each of several contexts, as in WinoGrande.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from everlearn.data.blocks import hash_of
from everlearn.data.readers import Row
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import Floats, Metric, ratio, register_metric
from everlearn.evaluation.task import BYTES_PER_TOKEN, Conditions, Task, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.likelihood import Pair, rows_of, scored
from everlearn.tasks.prompted import Asking, check_writes
from everlearn.tasks.prompts import Asked, ChoiceTask, Question, drawn, filled, listed, read_choices, right_option, rows
from everlearn.wording import count


class SchemaTask(Asked):
    """A schema task: the answer is the context after which the text is likeliest."""

    kind: Literal["schema"] = "schema"
    """The answer is the context after which the text is likeliest; nothing is fine-tuned."""
    prompt: str = "{continuation}"
    """The text that is scored after each context; `{column}` stands for a column's value, `{{` for a brace."""
    contexts_column: str = "context_options"
    """Column with the list of contexts."""
    answer_column: str = "gold"
    """Column with the right context: its number, counted from 0, or its text."""
    separator: str | None = None
    """Text between context and scored text. Default: a blank, or nothing under `objective: text-to-text`."""


def read_schemas(task: SchemaTask) -> list[Question]:
    """Read the scored texts, with their contexts as the answers to choose from.

    Raises:
        DataError: a file cannot be read, a column is missing or holds something else, or there is no example.
    """

    def question(row: Row) -> Question:
        contexts = listed(row, task.contexts_column)
        return Question(filled(task.prompt, row), contexts, right_option(row, contexts, task.answer_column))

    return drawn(task, [question(row) for row in rows(task, [task.contexts_column, task.answer_column])])


@register_kind(ChoiceTask)
class Choice(Task):
    """Score the options of each question; all options of one question are rows of the same batch."""

    kind = "choice"
    config: Any

    @cached_property
    def questions(self) -> list[Question]:
        """Return the examples; raise ``DataError`` if they cannot be read."""
        return read_choices(self.config)

    def check(self) -> str:
        counts = sorted({len(question.answers) for question in self.questions})
        return f"{count(len(self.questions), 'question')} of {' or '.join(map(str, counts))} options"

    def fingerprint(self) -> str:
        return hash_of(self.kind, self.config.marks, [(q.prompt, q.answers, q.right) for q in self.questions])

    def texts(self) -> Sequence[str]:
        return [question.prompt for question in self.questions]

    def answered(self, cell: Cell) -> Sequence[str]:
        chosen = np.argmin(cell["option_nats"], axis=0)
        return [question.answers[option] for question, option in zip(self.questions, chosen.tolist(), strict=True)]

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the metrics that the task names need to know."""
        scores, choices = getattr(self.config, "scores", ()), getattr(self.config, "choices", ())
        facts: dict[str, Any] = {"scores": list(scores), "positive": len(choices) - 1} if scores else {}
        return facts | ({"values": [*map(float, choices)]} if {"pearson", "spearman"} & {*scores} else {})

    def pairs(self, question: Question) -> list[Pair]:
        """Return each option with the prompt before it."""
        return [(question.prompt, option) for option in question.answers]

    def work(self, seeds: int) -> Work:
        rows = [len("".join(pair).encode()) for question in self.questions for pair in self.pairs(question)]
        return Work(units=len(self.questions), rows=len(rows), tokens=sum(rows) // (BYTES_PER_TOKEN * len(rows)) + 1)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        questions = [self.pairs(question) for question in self.questions]
        nats, tokens = option_nats(self.config, predictor, conditions, questions)
        sizes = np.zeros(nats.shape, np.int64)
        for number, pairs in enumerate(questions):
            sizes[: len(pairs), number] = [len(option.encode()) for _, option in pairs]
        return Cell(
            self.kind,
            self.name,
            conditions.row,
            {"option_nats": nats, "option_tokens": tokens},
            {"right_option": np.array([q.right for q in self.questions], np.int64), "option_bytes": sizes},
            self.facts,
            fingerprint=self.fingerprint(),
        )

    def always(self, answer: str) -> Cell:
        """Return the cell of a model that always chooses `answer`, or the first option of a question without it."""
        nats = np.full((max(len(q.answers) for q in self.questions), len(self.questions)), np.inf)
        for number, question in enumerate(self.questions):
            nats[question.answers.index(answer) if answer in question.answers else 0, number] = 0.0
        sizes = np.ones(nats.shape, np.int64)
        outcomes, right = {"option_nats": nats, "option_tokens": sizes}, [q.right for q in self.questions]
        properties = {"right_option": np.array(right, np.int64), "option_bytes": sizes}
        return Cell(self.kind, self.name, answer, outcomes, properties, self.facts, fingerprint=self.fingerprint())


def option_nats(
    config: Any, predictor: Predictor, conditions: Conditions, questions: Sequence[Sequence[Pair]]
) -> tuple[Floats, NDArray[np.int64]]:
    """Return −log p and the number of tokens of each option, both [most options, questions].

    Args:
        config: options of the end task: those of :class:`Asks`, and its `separator`.
        predictor: the predictor to evaluate.
        conditions: conditions of the evaluation.
        questions: for each question its options, each with the prompt before it. A question with fewer options than
            others is padded with infinite nats and 0 tokens.
    """
    nats = np.full((max(map(len, questions)), len(questions)), np.inf)
    tokens = np.zeros(nats.shape, np.int64)
    asking = Asking(config, predictor, conditions)
    rows = rows_of(asking, questions, config.separator)
    left, done = [len(options) for options in rows], 0
    for option, loss in scored(asking, predictor, rows):
        nats[option.number, option.question] = loss
        tokens[option.number, option.question] = len(option.ids)
        left[option.question] -= 1
        done += not left[option.question]
        if conditions.progress is not None and not left[option.question]:
            conditions.progress(done)
    return nats, tokens


@register_kind(SchemaTask)
class Schema(Choice):
    """Score one text after each of several contexts (Trinh and Le, arXiv 1806.02847: partial scoring)."""

    kind = "schema"

    def check_model(self, kind: Kind) -> None:
        check_writes(self.config, kind)  # a masked model cannot score a complete text

    @cached_property
    def questions(self) -> list[Question]:
        """Return the examples, with the contexts as answers; raise ``DataError`` if they cannot be read."""
        return read_schemas(self.config)

    def check(self) -> str:
        return f"{super().check().removesuffix('options')}contexts"

    def pairs(self, question: Question) -> list[Pair]:
        return [(context, question.prompt) for context in question.answers]


def _accuracy(per: str | None) -> Any:
    def terms(cell: Cell) -> NDArray[Any]:
        nats = cell["option_nats"]
        size = np.ones_like(nats) if per is None else np.maximum(cell[per], 1)
        right = (np.argmin(nats / size, axis=0) == cell["right_option"]).astype(np.float64)
        return np.stack([right, np.ones_like(right)])[None]

    return terms


for _name, _title, _per in (
    ("choice_accuracy", "Choice accuracy", None),
    ("choice_accuracy_per_byte", "Choice accuracy per byte", "option_bytes"),
    ("choice_accuracy_per_token", "Choice accuracy per token", "option_tokens"),
):
    _reads = ("option_nats", "right_option", *([_per] if _per else []))
    register_metric(Metric(_name, _title, "fraction", True, _reads, _accuracy(_per), ratio))
