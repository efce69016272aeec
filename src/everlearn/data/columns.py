"""The columns of a corpus that hold its text, where a user has not named them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from everlearn.data import hub
from everlearn.data.corpus import Corpus
from everlearn.data.readers import read_rows, resolve_files, stored_columns
from everlearn.data.row_formats import PAIRS, ROW_FORMATS, TEXT_COLUMNS, TOOLS, RowFormat
from everlearn.errors import DataError

LOOKED_AT = 50
"""Number of rows that are examined."""


class Columns(NamedTuple):
    """The columns of a corpus, by the keys of a recipe."""

    text_column: str
    target_column: str | None = None
    messages_column: str | None = None
    tools_column: str | None = None
    row_format: str | None = None

    @property
    def answers(self) -> bool:
        """Return whether only answers, or the assistant's messages of a chat, are learnt."""
        return any(key is not None for key in (self.target_column, self.messages_column, self.row_format))

    @property
    def form(self) -> RowFormat | None:
        """The kind of the rows, if it is one by name."""
        return None if self.row_format is None else ROW_FORMATS[self.row_format]

    @property
    def keys(self) -> dict[str, str]:
        """The keys that a recipe must name."""
        if self.row_format is not None:
            return {"row_format": self.row_format}
        if self.messages_column is not None:
            tools = {} if self.tools_column is None else {"tools_column": self.tools_column}
            return {"messages_column": self.messages_column, **tools}
        named = {} if self.text_column == "text" else {"text_column": self.text_column}
        return named if self.target_column is None else named | {"target_column": self.target_column}


def text_corpus(path: str, key: str, remedy: str = "rename the column that is to be read to 'text'") -> Corpus:
    """Return a corpus of plain text, with the column that holds it.

    Args:
        path: a file, a folder, a glob, or the id of a data set on the hub.
        key: the option or argument that names it, for errors.
        remedy: what to do about several columns, for errors.

    Raises:
        DataError: it cannot be read, or has no text, or prompts and answers instead.
    """
    rows = first_rows(path, key)
    if not rows:  # the reader reports that it is empty
        return Corpus(path=path)
    columns = choose_columns(rows, path, None)
    if columns.answers:
        what = ", ".join(f"`{name}: {value}`" for name, value in columns.keys.items())
        raise DataError(
            f"`{key}`: {path} holds answers to prompts ({what}), and plain text is needed here. Name another file, or "
            f"{remedy}."
        )
    return Corpus(path=path, text_column=columns.text_column)


def choose_columns(
    rows: Sequence[Mapping[str, Any]], path: str, task: str | None, learner: str | None = None
) -> Columns:
    """Choose the columns of text, of prompt and answer, or of a chat.

    Args:
        rows: the first ones of the corpus.
        path: path of the file, for errors.
        task: `sft` takes prompts and answers, or chats; `pretrain` takes text; None takes what the columns suggest.
        learner: subject of error messages, such as "An encoder-decoder model", if the model can only learn prompts and
            answers; None for other models.

    Raises:
        DataError: the corpus has no columns that suit the task.
    """
    if not rows:
        raise DataError(f"{path} is empty: it holds no text.")
    columns = text_columns(rows)
    by_case = {name.lower(): name for name in sorted(columns)}
    pair = next(((by_case[a], by_case[b]) for a, b in PAIRS if a in by_case and b in by_case), None)
    text = next((by_case[name] for name in TEXT_COLUMNS if name in by_case), None)
    names = list(dict.fromkeys(name for row in rows for name in row))
    chats = next((name for name in names if _chats(rows, name)), None)
    wanted = task == "sft" or (task is None and text is None)
    forms = [form for form in ROW_FORMATS.values() if learner is None or not form.chat]
    if wanted and (form := next((form for form in forms if _holds(rows, form, columns)), None)):
        return Columns("text", row_format=form.name)
    if wanted and chats and pair is None and learner is None:
        return Columns("text", None, chats, TOOLS if any(row.get(TOOLS) for row in rows) else None)
    if text is None and pair is None:
        blank = [name for name in names if name in TEXT_COLUMNS and not any(row.get(name) for row in rows)]
        if blank and not columns:
            return Columns(blank[0])  # text may follow later; if not, the reader reports that each row is blank
    shown = ", ".join(f"'{name}'" for name in names) or "none"
    if task == "sft" and pair is None:
        needs, instead = (
            "`--task sft` needs",
            "leave `--task` out and set `text_column` and `target_column` in the recipe",
        )
        if learner is not None:
            needs, instead = f"{learner} learns only", "choose an encoder or a decoder, which learn text"
        raise DataError(
            f"{needs} prompts and answers, but the columns of {path} are {shown}. Rename two of them to 'prompt' and "
            f"'answer', or {instead}."
        )
    if wanted and pair is not None:
        return Columns(*pair)
    if text is None and columns:
        text = max(sorted(columns), key=lambda name: sum(len(str(row.get(name) or "")) for row in rows))
    if text is None and chats:
        raise DataError(
            f"{path} holds chats (column '{chats}'), which a decoder learns as a domain, and what is needed here is "
            f"{'prompts and answers' if task == 'sft' else 'text'}. Name another file."
        )
    if text is None:
        raise DataError(
            f"{path} has no column of text: its columns are {shown}. Write one line of JSON per document, as in "
            '{"text": "…"}, or {"prompt": "…", "answer": "…"}.'
        )
    return Columns(text)


def _holds(rows: Sequence[Mapping[str, Any]], form: RowFormat, texts: Collection[str]) -> bool:
    """Return whether rows are of a kind: its columns hold text, or chats."""
    names = {name for row in rows for name in row}
    if form.unread and not names.issuperset(form.unread):
        return False
    if form.chat and _chats(rows, form.answer):
        return True
    return bool(form.prompt) and {form.prompt, form.answer} <= set(texts)


def _chats(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether a column holds chats: lists of messages, each with a role and a content."""
    values = [row[name] for row in rows if row.get(name)]
    return bool(values) and all(isinstance(value, list) and all(map(_message, value)) for value in values)


def _message(value: Any) -> bool:
    forms = ({"role", "content"}, {"role", "tool_calls"}, {"from", "value"})
    return isinstance(value, dict) and any(form <= value.keys() for form in forms)


def text_columns(rows: Sequence[Mapping[str, Any]], shortest: int = 1) -> set[str]:
    """Return the columns that contain only text, with at least `shortest` characters on average."""
    names = {name for row in rows for name in row}
    values = {name: [row[name] for row in rows if row.get(name)] for name in names}
    return {
        name
        for name, own in values.items()
        if own
        and all(isinstance(value, str) for value in own)
        and sum(len(value) for value in own) >= shortest * len(own)
    }


def first_rows(path: str, key: str) -> list[Mapping[str, Any]]:
    """Return the first rows of a corpus, with all their columns.

    Args:
        path: path of the corpus.
        key: the option or key that names it, for errors.

    Raises:
        DataError: it cannot be read.
    """
    if Corpus(path=path).on_hub:
        return list(islice(hub.load(Corpus(path=path, streaming=True)), LOOKED_AT))
    file = resolve_files(path, key)[0]
    return [row.values for row in islice(read_rows(file, stored_columns(file), gaps=True), LOOKED_AT)]
