"""Read examples for tasks without fine-tuning: a prompt with its right answers, or with options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from everlearn.data.readers import Row, read_rows, resolve_files
from everlearn.data.text_template import parts_of, value_at
from everlearn.errors import DataError
from everlearn.evaluation.task import TaskConfig
from everlearn.tasks.labelled import NUMBER, at_most

T = TypeVar("T")


class Asked(TaskConfig):
    """Options of all tasks that evaluate a language model without fine-tuning."""

    paths = ("test",)
    test: str
    """Files to measure on: a file, folder or glob (jsonl, json, csv, tsv, parquet, arrow; compressed or not)."""
    prompt: str = "{text}"
    """What the model reads before the answer; `{column}` stands for a column's value, `{column.key}` for a value inside
    it (or for the column `column.key`), `{{` for a brace. Use the spaces and line ends of the training text."""
    max_length: int | None = Field(default=None, ge=8)
    """Maximum number of tokens of a prompt. Longer ones are cut: for an encoder at the end, as in training, otherwise
    at the beginning. Default: the model's longest input."""
    keep_last: int = Field(default=0, ge=0)
    """Number of tokens at the end of a long prompt that are kept; the tokens before them are cut, for every kind of
    model, as by the domain's key of the same name in training. 0: cut as `max_length` says."""
    max_test: int | None = Field(default=None, ge=1)
    """Maximum number of examples, drawn at random; the same ones each time."""

    @property
    def marks(self) -> str:
        """Return everything but the examples on which scores depend, for a fingerprint.

        Keys of later versions are included only if they are set.
        """
        later = {key for key in ("keep_last", "scores") if not getattr(self, key, None)}
        return self.model_dump_json(exclude={"name", "domain", "test", *later})

    @field_validator("prompt")
    @classmethod
    def _template(cls, value: str) -> str:
        parts_of(value)
        return value


class AnswerTask(Asked):
    """A text-to-text task: the model generates an answer by greedy decoding, which is compared with the right one."""

    kind: Literal["text-to-text"] = "text-to-text"
    """The model generates an answer, which is compared with the right one; nothing is fine-tuned."""
    target_column: str = "target"
    """Column with the right answer: a text or number, or a list of which any is right."""
    max_new_tokens: int | None = Field(default=32, ge=1)
    """Maximum number of generated tokens; generation also stops at an end-of-text token. null: one more than the
    longest of `labels`, which shows whether an answer continues after a label."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, such as a line end, for models that did not learn where an answer ends."""
    labels: tuple[str, ...] = ()
    """All possible answers. If set, accuracy and macro-F1 are measured too: the prediction is the label with which the
    generated answer begins, compared by whole words without case. An answer that begins with none is wrong."""
    match: Literal["exact", "words", "squad"] = "exact"
    """What counts as an exact match. `exact`: the same characters except for white space. `words`: the same words,
    without case and ASCII punctuation. `squad`: as `words`, and without the articles a, an, the (unsuitable if an
    answer can be the letter A)."""

    @model_validator(mode="after")
    def _limited(self) -> AnswerTask:
        if self.max_new_tokens is None and not self.labels:
            raise ValueError("`max_new_tokens: null` follows from the longest of `labels`, and there are none")
        return self

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("an empty text ends every answer before it begins")
        return value


class ChoiceTask(Asked):
    """A multiple-choice task: the answer is the option that is likeliest after the prompt."""

    kind: Literal["choice"] = "choice"
    """The answer is the option that is likeliest after the prompt; nothing is fine-tuned."""
    prompt: str = "{query}"
    """The text before each option; `{column}` stands for a column's value, `{{` for a brace."""
    choices_column: str = "choices"
    """Column with the list of options."""
    choices: tuple[str, ...] = ()
    """The options, if they are the same for all examples; `choices_column` is then not read."""
    answer_column: str = "gold"
    """Column with the right option: its number, counted from 0, or its text."""
    separator: str | None = None
    """Text between prompt and option. Default: a blank, or nothing under `objective: text-to-text`, where prompt and
    answer are tokenised apart. It does not count towards the bytes of an option."""

    scores: tuple[Literal["accuracy", "positive_f1", "matthews", "pearson", "spearman"], ...] = ()
    """With `choices`: GLUE's metrics of the task, whose mean is its GLUE score. F1 is that of the last choice; for
    Pearson's and Spearman's correlation the choices are numbers."""

    @model_validator(mode="after")
    def _two(self) -> ChoiceTask:
        if self.scores and not self.choices:
            raise ValueError("`scores` need `choices`, the same for all examples")
        if {"pearson", "spearman"} & {*self.scores} and not all(map(NUMBER.fullmatch, self.choices)):
            raise ValueError("`scores` with a correlation need numbers as `choices`")
        if len(self.choices) == 1 or len(set(self.choices)) < len(self.choices) or "" in self.choices:
            raise ValueError("`choices` must be two or more different options, none of them empty")
        return self


@dataclass(frozen=True)
class Question:
    """A prompt with its answers.

    Attributes:
        prompt: the input of the model.
        answers: the right answers (text-to-text), or all options (choice).
        right: number of the right option; 0 for text-to-text.
    """

    prompt: str
    answers: tuple[str, ...]
    right: int = 0


def filled(template: str, row: Row) -> str:
    """Fill a template with a row's values."""
    parts = []
    for before, path in parts_of(template):
        name = ".".join(path)
        value = row.values[name] if name in row.values else value_at(path, row.values, row.where)
        parts += [before, _word(value, name, row.where)] if path else [before]
    return "".join(parts)


def read_answers(task: AnswerTask) -> list[Question]:
    """Read prompts with their right answers.

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
    """Read prompts with their options.

    Raises:
        DataError: a file cannot be read, a column is missing or holds something else, or there is no example.
    """

    def question(row: Row) -> Question:
        texts = task.choices or listed(row, task.choices_column)
        return Question(filled(task.prompt, row), texts, right_option(row, texts, task.answer_column))

    own = [] if task.choices else [task.choices_column]
    return drawn(task, [question(row) for row in rows(task, [*own, task.answer_column])])


def listed(row: Row, column: str) -> tuple[str, ...]:
    """Return the options in a column of a row; raise ``DataError`` unless there are at least two, none empty."""
    options: Any = row.values[column]
    if not isinstance(options, list) or len(options) < 2:
        raise DataError(f"{row.where}: column '{column}' must hold a list of options (got {options!r}).")
    texts = tuple(_word(option, column, row.where) for option in options)
    if "" in texts:
        raise DataError(f"{row.where}: column '{column}' has an empty option.")
    return texts


def label_of(answer: str, labels: tuple[str, ...]) -> int:
    """Return the number of the longest label with which an answer begins; -1 for none.

    Whole words are compared, without case.
    """
    words = answer.split()
    number_of_longest, longest = -1, 0
    for number, label in enumerate(labels):
        parts = label.split()
        begins = [w.casefold() for w in words[: len(parts)]]
        if begins:
            begins[-1] = begins[-1] if begins[-1] == parts[-1].casefold() else begins[-1].rstrip(".,;:!?")
        if len(parts) > longest and begins == [part.casefold() for part in parts]:
            number_of_longest, longest = number, len(parts)
    return number_of_longest


def rows(task: Asked, columns: list[str]) -> Iterator[Row]:
    """Read the rows of the task's files, with these columns and those of its prompt."""
    named = [part.path for part in parts_of(task.prompt) if part.path]
    dotted = [".".join(path) for path in named if path[1:]]
    for file in resolve_files(task.test, "test"):
        # A flattened table has a column `answers.text` in place of one with values inside.
        first = next(read_rows(file, (), optional=dotted, limits=task.limits), None) if dotted else None
        there = () if first is None else first.values
        own = [name if (name := ".".join(path)) in there else path[0] for path in named]
        yield from read_rows(file, list(dict.fromkeys([*own, *columns])), limits=task.limits)


def drawn(task: Asked, questions: list[T]) -> list[T]:
    """Return all questions, or the sample that `max_test` asks for."""
    if not questions:
        raise DataError(f"End task '{task.name}': `test: {task.test}` is empty.")
    return at_most(task.max_test, questions, f"{task.name} test")


def right_option(row: Row, options: tuple[str, ...], column: str) -> int:
    """Return the number of the right option, which the column holds as text or number; else raise ``DataError``."""
    value = row.values[column]
    text = (
        "" if isinstance(value, bool) or not isinstance(value, str | int | float) else _word(value, column, row.where)
    )
    numbers = tuple(str(number) for number in range(len(options)))
    for known in (options, numbers) if isinstance(value, str) else (numbers, options):
        if text in known:
            return known.index(text)
    raise DataError(
        f"{row.where}: column '{column}' must hold the right option's text, or its number from 0 to {len(options) - 1} "
        f"(got {value!r})."
    )


def _word(value: Any, column: str, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where}: column '{column}' must hold text or a number; it holds {value!r}.")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
