"""Examples that a language model is asked as it is: a prompt with the answer it should give, or with options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, field_validator, model_validator

from everlearn.data.readers import Row, read_rows, resolve_files
from everlearn.errors import DataError
from everlearn.evaluation.task import TaskConfig
from everlearn.seeding import seed_for

T = TypeVar("T")


class Asked(TaskConfig):
    """What the kinds that ask a language model share."""

    paths = ("test",)
    test: str
    """Files to measure on: a file, folder or glob (jsonl, json, csv, tsv, parquet; compressed or not)."""
    prompt: str = "{text}"
    """What the model reads before the answer; `{column}` stands for a column's value, `{{` for a brace. Write spaces
    and line ends as the model saw them in training."""
    max_length: int | None = Field(default=None, ge=8)
    """Tokens of a prompt; what is longer is cut: at its end before an encoder, as in training, else at its beginning.
    As many as the model has positions for when left out."""
    keep_last: int = Field(default=0, ge=0)
    """So many tokens at a prompt's end stay where it is too long, and what is before them is cut, for every kind of
    model: as the key of the same name does it in training. 0 cuts as `max_length` says."""
    max_test: int | None = Field(default=None, ge=1)
    """Measure on no more than so many examples, drawn at random, the same ones each time."""

    @property
    def marks(self) -> str:
        """What scores depend on beside the examples, for a fingerprint; newer keys only where they are set."""
        later = set() if self.keep_last else {"keep_last"}
        return self.model_dump_json(exclude={"name", "domain", "test", *later})

    @field_validator("prompt")
    @classmethod
    def _template(cls, value: str) -> str:
        columns_of(value)
        return value


class AnswerTask(Asked):
    """A text-to-text task: the model writes an answer by greedy decoding, which is compared with the right one."""

    kind: Literal["text-to-text"] = "text-to-text"
    """The model writes an answer, which is compared with the right one; nothing is fine-tuned."""
    target_column: str = "target"
    """Column with the right answer: a text or number, or a list of which any is right."""
    max_new_tokens: int | None = Field(default=32, ge=1)
    """Tokens that the model may write; it stops before where it writes its end-of-text token. null: one more than the
    longest of `labels` has, so that an answer that goes on behind a label is seen to do so."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, such as a line end, for models that never learnt where an answer ends."""
    labels: tuple[str, ...] = ()
    """The answers that there are. Then accuracy and macro-F1 are measured too: the label that the written answer begins
    with, whole words, whatever their case; an answer that begins with none is wrong."""
    match: Literal["exact", "words", "squad"] = "exact"
    """What counts as an exact match: the same characters but for white space; `words`, the same words but for case and
    ASCII punctuation; or the same after SQuAD's normalisation (as `words`, and without the articles a, an, the: not for
    tasks whose answer may be the letter A)."""

    @model_validator(mode="after")
    def _limited(self) -> AnswerTask:
        if self.max_new_tokens is None and not self.labels:
            raise ValueError("`max_new_tokens: null` writes as much as the longest of `labels`, and there are none")
        return self

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty text ends every answer before it begins")
        return value


class ChoiceTask(Asked):
    """A multiple-choice task: the option that the model finds likeliest after the prompt is its answer."""

    kind: Literal["choice"] = "choice"
    """The option that is likeliest after the prompt is the model's answer; nothing is fine-tuned."""
    prompt: str = "{query}"
    """What stands before the options; `{column}` stands for a column's value, `{{` for a brace."""
    choices_column: str = "choices"
    """Column with the list of options."""
    choices: tuple[str, ...] = ()
    """The options, where they are the same for each example; then `choices_column` is not read."""
    answer_column: str = "gold"
    """Column with the right option: its number, counted from 0, or its text."""
    separator: str | None = None
    """Between the prompt and an option. When left out a blank, and nothing under `objective: text-to-text`, where
    prompt and answer are tokenised apart. An option's length in bytes is measured without it."""

    @model_validator(mode="after")
    def _two(self) -> ChoiceTask:
        if len(self.choices) == 1 or len(set(self.choices)) < len(self.choices) or "" in self.choices:
            raise ValueError("`choices` must be two or more different options, none of them empty")
        return self


@dataclass(frozen=True)
class Question:
    """A prompt and the answers to it.

    Attributes:
        prompt: what the model reads.
        answers: those that are right (text-to-text), or all options (choice).
        right: number of the right option; 0 for text-to-text.
    """

    prompt: str
    answers: tuple[str, ...]
    right: int = 0


def columns_of(template: str) -> list[str]:
    """The columns that a prompt names.

    Raises:
        ValueError: it is no template; the sentence says why.
    """
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"the prompt is no template: {error}; write a brace as `{{{{` or `}}}}`") from None
    names = [name for _, name, _, _ in parsed if name is not None]
    if bad := [name for name in names if not name] + [name for _, name, form, turn in parsed if form or turn]:
        raise ValueError(f"the prompt may name columns only, as in `{{text}}` (got '{{{bad[0]}}}')")
    return list(dict.fromkeys(names))


def filled(template: str, row: Row) -> str:
    """The template with a row's values."""
    parts = []
    for literal, name, _, _ in Formatter().parse(template):
        parts += [literal] if name is None else [literal, _word(row.values[name], name, row.where)]
    return "".join(parts)


def read_answers(task: AnswerTask) -> list[Question]:
    """Prompts with their right answers.

    Raises:
        DataError: a file cannot be read, a column is missing or holds something else, or there is no example.
    """

    def question(row: Row) -> Question:
        value = row.values[task.target_column]
        listed = value if isinstance(value, list) else [value]
        answers = tuple(_word(one, task.target_column, row.where) for one in listed)
        if not answers:
            raise DataError(
                f"{row.where}: column '{task.target_column}' is an empty list; at least one answer is right."
            )
        if task.labels and label_of(answers[0], task.labels) < 0:
            raise DataError(
                f"{row.where}: the answer '{answers[0]}' begins with none of end task '{task.name}''s `labels`: "
                f"{', '.join(task.labels[:20])}."
            )
        return Question(filled(task.prompt, row), answers)

    return drawn(task, [question(row) for row in rows(task, [task.target_column])])


def read_choices(task: ChoiceTask) -> list[Question]:
    """Prompts with their options.

    Raises:
        DataError: a file cannot be read, a column is missing or holds something else, or there is no example.
    """

    def question(row: Row) -> Question:
        texts = task.choices or listed(row, task.choices_column)
        return Question(filled(task.prompt, row), texts, right_option(row, texts, task.answer_column))

    own = [] if task.choices else [task.choices_column]
    return drawn(task, [question(row) for row in rows(task, [*own, task.answer_column])])


def listed(row: Row, column: str) -> tuple[str, ...]:
    """Two options or more from a column; raises ``DataError``."""
    options: Any = row.values[column]
    if not isinstance(options, list) or len(options) < 2:
        raise DataError(f"{row.where}: column '{column}' must hold a list of options (got {options!r}).")
    texts = tuple(_word(option, column, row.where) for option in options)
    if "" in texts:
        raise DataError(f"{row.where}: column '{column}' has an empty option.")
    return texts


def label_of(answer: str, labels: tuple[str, ...]) -> int:
    """Number of the longest label that an answer begins with, whole words, whatever their case; -1 for none."""
    words = answer.split()
    found, longest = -1, 0
    for number, label in enumerate(labels):
        parts = label.split()
        begins = [w.casefold() for w in words[: len(parts)]]
        if begins:
            begins[-1] = begins[-1] if begins[-1] == parts[-1].casefold() else begins[-1].rstrip(".,;:!?")
        if len(parts) > longest and begins == [part.casefold() for part in parts]:
            found, longest = number, len(parts)
    return found


def rows(task: Asked, columns: list[str]) -> Iterator[Row]:
    """The rows of its files, with these columns and those of its prompt."""
    wanted = [*columns_of(task.prompt), *columns]
    for file in resolve_files(task.test, "test"):
        yield from read_rows(file, wanted, limits=task.limits)


def drawn(task: Asked, questions: list[T]) -> list[T]:
    """All of them, or those that `max_test` draws."""
    if not questions:
        raise DataError(f"End task '{task.name}': `test: {task.test}` is empty.")
    if task.max_test is None or task.max_test >= len(questions):
        return questions
    generator = np.random.Generator(np.random.PCG64(seed_for("end task", f"{task.name} test")))
    return [questions[i] for i in np.sort(generator.choice(len(questions), task.max_test, replace=False))]


def right_option(row: Row, options: tuple[str, ...], column: str) -> int:
    """Number of the right option; raises ``DataError``."""
    value = row.values[column]
    said = (
        "" if isinstance(value, bool) or not isinstance(value, str | int | float) else _word(value, column, row.where)
    )
    numbers = tuple(str(number) for number in range(len(options)))
    for known in (options, numbers) if isinstance(value, str) else (numbers, options):
        if said in known:
            return known.index(said)
    raise DataError(
        f"{row.where}: column '{column}' must hold the right option's text, or its number from 0 to {len(options) - 1} "
        f"(got {value!r})."
    )


def _word(value: Any, column: str, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where}: column '{column}' must hold text or a number; it holds {value!r}.")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
