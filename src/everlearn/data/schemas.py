"""Examples in which one text follows several contexts: which of them makes it likeliest (WinoGrande, Winograd)?"""

from __future__ import annotations

from typing import Literal

from everlearn.data.prompts import Asked, Question, drawn, filled, listed, right_option, rows
from everlearn.data.readers import Row


class SchemaTask(Asked):
    """A schema task: the context after which the model finds the text likeliest is its answer."""

    kind: Literal["schema"] = "schema"
    """The context after which the text is likeliest is the model's answer; nothing is fine-tuned."""
    prompt: str = "{continuation}"
    """The text that follows each context, and is scored; `{column}` stands for a column's value, `{{` for a brace."""
    contexts_column: str = "context_options"
    """Column with the list of contexts."""
    answer_column: str = "gold"
    """Column with the right context: its number, counted from 0, or its text."""
    separator: str | None = None
    """Between a context and the text. When left out a blank, and nothing under `objective: text-to-text`."""


def read_schemas(task: SchemaTask) -> list[Question]:
    """Texts with the contexts before them, as answers.

    Raises:
        DataError: a file cannot be read, a column is missing or holds something else, or there is no example.
    """

    def question(row: Row) -> Question:
        contexts = listed(row, task.contexts_column)
        return Question(filled(task.prompt, row), contexts, right_option(row, contexts, task.answer_column))

    return drawn(task, [question(row) for row in rows(task, [task.contexts_column, task.answer_column])])
