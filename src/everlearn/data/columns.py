"""The columns of a corpus that hold its text, where a user has not named them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from everlearn.data import hub
from everlearn.data.corpus import Corpus
from everlearn.data.folders import inside
from everlearn.data.json_rows import rows_inside
from everlearn.data.messages import TURNS
from everlearn.data.readers import folder_of, format_of, read_rows, resolve_files, stored_columns
from everlearn.data.row_formats import PAIRS, ROW_FORMATS, TEXT_COLUMNS, TOOLS, RowFormat, first_answer
from everlearn.data.rows import texts_inside
from everlearn.errors import DataError
from everlearn.wording import plural

LOOKED_AT = 50
"""Number of rows that are examined."""
HELD_OUT_SPLITS = ("validation", "test", "train")
"""Splits of a folder from which text to measure on is read; the first that exists."""
NO_NAME = 5
"""Number of words from which the name of a column is taken for a text: the first row of a file without names."""
IN_RECIPE = 'name it in the recipe: `text_column: "{}"`'
"""How to read a text inside a column, for errors about a domain; takes the column."""
WRITE_TEXT = "write what is to be read into a column 'text'"
"""How to read one of several columns, whatever they hold, for errors."""


PROMPTS = {ask for ask, _ in PAIRS if ask not in ("source", "context")} | {"problem"}
"""Names of columns with what is asked, whatever the name of the answers' column."""
ANSWER = {answer for _, answer in PAIRS} | {"solution"}
"""Names of columns with an answer, whatever the name of the prompts' column."""
ANSWERS = {*ANSWER, *(plural(name) for name in ANSWER if not name.endswith("s")), "replies", "generations"}
"""Names of columns with answers, or several of them."""
MESSAGE_OF_TREE = {"text", "role", "parent_id"}
"""Columns of rows that are single messages of conversation trees (OpenAssistant)."""
WRITE_PATHS = "write each path from a root to a leaf as a list of messages into a column 'messages'"
"""How to read conversation trees, for errors and notes."""


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
        return ROW_FORMATS.get(self.row_format or "")

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


def text_corpus(
    path: str,
    key: str,
    remedy: str = "",
    splits: Sequence[str] = HELD_OUT_SPLITS,
    nested: str = WRITE_TEXT,
    answers: bool = False,
) -> Corpus:
    """Return a corpus of plain text, with the column that holds it.

    Args:
        path: a file, a folder, a glob, or the id of a data set on the hub.
        key: the option or argument that names it, for errors.
        remedy: what else to do about several columns of text, for errors.
        splits: split to read of a data set of the hub, or of a folder whose file names indicate splits; of several,
            the first that exists.
        nested: how to read a text inside a column, for errors.
        answers: whether it may have prompts and answers, or chats, instead of plain text.

    Raises:
        DataError: it cannot be read, or has no text, or prompts and answers that it may not have.
    """
    corpus = Corpus(path=path, split=split_to_read(path, key, splits))
    rows = first_rows(path, key, corpus.split)
    if not rows:  # the reader reports that it is empty
        return corpus
    texts = text_columns(rows)
    columns = choose_columns(rows, path, "pretrain" if _usual_text(texts) else None, nested=nested)
    if columns.answers and answers:
        return corpus.model_copy(update=columns.keys)
    if columns.answers:
        what = ", ".join(f"`{name}: {value}`" for name, value in columns.keys.items())
        raise DataError(
            f"`{key}`: {path} holds answers to prompts ({what}), and plain text is needed here. Name another file, or "
            f"{remedy if remedy and texts else WRITE_TEXT}."
        )
    return corpus.model_copy(update={"text_column": columns.text_column})


def split_to_read(path: str, key: str, splits: Sequence[str] = HELD_OUT_SPLITS) -> str:
    """Return the first of some splits that a folder or a data set of the hub has; `train` for what has none."""
    corpus = Corpus(path=path)
    if corpus.on_hub:
        return corpus.split if corpus.split == splits[0] else hub.split_of(corpus, splits)
    folder = folder_of(path, key)
    return ("" if folder is None else inside(folder, format_of, *splits).split) or "train"


def choose_columns(
    rows: Sequence[Mapping[str, Any]],
    path: str,
    task: str | None,
    learner: str | None = None,
    chats: bool = True,
    nested: str | None = None,
) -> Columns:
    """Choose the columns of text, of prompt and answer, or of a chat.

    Args:
        rows: the first ones of the corpus.
        path: path of the file, for errors.
        task: `sft` takes prompts and answers, or chats; `pretrain` takes text; None takes what the columns suggest.
        learner: subject of error messages, such as "An encoder-decoder model", if the model can only learn prompts and
            answers; None for other models.
        chats: whether the model learns chats: a decoder.
        nested: how to read a text inside a column, for errors; None for a domain, whose recipe names it.

    Raises:
        DataError: the corpus has no columns that suit the task, or its rows are not read as they are meant.
    """
    if not rows:
        raise DataError(f"{path} is empty: it holds no text.")
    columns = {name for name in text_columns(rows) if not _chats(rows, name)}
    by_case = {name.lower(): name for name in sorted(columns)}
    pair = next(((by_case[a], by_case[b]) for a, b in PAIRS if a in by_case and b in by_case), None)
    text = _usual_text(columns)
    names = list(dict.fromkeys(name for row in rows for name in row))
    chat = next((name for name in names if _chats(rows, name)), None)
    chats = chats and learner is None
    forms = [form for form in ROW_FORMATS.values() if chats or not form.chat]
    form = next((form for form in forms if _holds(rows, form, columns, chats)), None)
    if task != "pretrain" and form is not None:
        return Columns("text", row_format=form.name)
    _check_trees(path, rows[0], task, nested)
    if pair is None and text is None:
        _check_contests(path, rows, columns)
        if task != "pretrain":
            _check_answers(path, rows, columns, nested)
    prefers_answers = task == "sft" or (task is None and text is None)
    if prefers_answers and chat and pair is None and chats:
        _check_answered(rows, path, chat)
        return Columns("text", None, chat, TOOLS if any(row.get(TOOLS) for row in rows) else None)
    if text is None and pair is None:
        if len(rows) == 1 and chat is None and path.endswith((".json", ".jsonl")):
            _check_wrapped(rows[0], path)
        _check_transcripts(path, columns)
        if task != "pretrain" and chat is None:
            _check_inside(rows, path, columns, nested)
        usual = [name for name in names if name.lower() in TEXT_COLUMNS and name != chat]
        mixed = [name for name in usual if any(row.get(name) and isinstance(row[name], str) for row in rows)]
        plain = [name for name in usual if not any(isinstance(row.get(name), list | tuple | Mapping) for row in rows)]
        if mixed or (plain and not columns):
            return Columns(next(iter(mixed or plain)))  # the reader reports what it holds besides text, and where
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
    if prefers_answers and pair is not None:
        return Columns(*pair)
    if text is None and columns:
        text = max(sorted(columns), key=lambda name: sum(len(str(row.get(name) or "")) for row in rows))
        if len(text.split()) >= NO_NAME:
            raise DataError(
                f"The column of {path} with most text is called '{shorten(text, 60, placeholder=' …')}', which looks "
                "like a text itself. If the first line is a row, put a line with the names of the columns before it; "
                "otherwise call the column 'text'."
            )
    if text is None and chat:
        raise DataError(
            f"{path} holds chats (column '{chat}'), which a decoder learns as a domain, and what is needed here is "
            f"{'prompts and answers' if task == 'sft' else 'text'}. Name another file."
        )
    if text is None:
        instead = 'Write one line of JSON per document, as in {"text": "…"}, or {"prompt": "…", "answer": "…"}.'
        if inner := nested_texts(rows):
            instead = f"To read a text inside a column, {(nested or IN_RECIPE).format(f'{{{max(inner)[1]}}}')}."
        raise DataError(f"{path} has no column of text: its columns are {shown}. {instead}")
    return Columns(text)


def _usual_text(columns: Collection[str]) -> str | None:
    """Return the column of text that has a usual name."""
    by_case = {name.lower(): name for name in sorted(columns)}
    return next((by_case[name] for name in TEXT_COLUMNS if name in by_case), None)


def _check_wrapped(row: Mapping[str, Any], path: str) -> None:
    """Refuse a single object with the rows inside of it."""
    if advice := rows_inside(row, Path(path)):
        raise DataError(f"{path} is one object. {advice}")


def _check_inside(rows: Sequence[Mapping[str, Any]], path: str, columns: Collection[str], nested: str | None) -> None:
    """Refuse rows with more text in lists, or in a prompt and its answer inside a column, than in a column of text."""
    beside = max((sum(len(str(row.get(name) or "")) for row in rows) for name in columns), default=0)
    alone = ""
    if len(columns) == 1 and nested is None:
        alone = f"; to learn '{min(columns)}' alone, {_as_text(min(columns), None)}"
    inside = {name: size for size, name in nested_texts(rows)}
    lists: dict[str, int] = {}
    for row in rows:
        for column, value in row.items():
            for name, size in _lists_inside(value, column):
                lists[name] = lists.get(name, 0) + size
    longest = max(lists, key=lists.__getitem__, default="")
    if lists.get(longest, 0) > max([beside, *inside.values()]):
        raise DataError(
            f"{path} has most of its text in lists in '{longest}', and it is not clear what to learn of them. Write "
            "plain text into a column 'text', a chat as a list of messages with 'role' and 'content' into 'messages', "
            f"or prompts and answers into 'prompt' and 'answer'{alone}."
        )
    parents = dict.fromkeys(name.rpartition(".")[0] for name in inside)
    pairs = ((f"{parent}.{ask}", f"{parent}.{answer}") for parent in parents for ask, answer in PAIRS)
    pair = next((pair for pair in pairs if all(name in inside for name in pair)), None)
    if nested is None and pair is not None and sum(inside[name] for name in pair) > beside:
        raise DataError(
            f"{path} has prompts and answers inside the column '{pair[0].partition('.')[0]}'. Name them in a recipe: "
            f'`text_column: "{{{pair[0]}}}"`, `target_column: "{{{pair[1]}}}"`{alone}.'
        )


def _lists_inside(value: object, name: str) -> Iterator[tuple[str, int]]:
    """Yield the dotted names of lists in a value, at any depth of mappings, and how much text is in each."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _lists_inside(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        yield name, _text_size(value)


def _text_size(value: object) -> int:
    """Return the number of characters of all texts in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return (
        sum(map(_text_size, value)) if isinstance(value, list | tuple) else len(value) if isinstance(value, str) else 0
    )


def _check_answered(rows: Sequence[Mapping[str, Any]], path: str, chat: str) -> None:
    """Refuse chats whose answers are in another column, under names that no kind of rows has."""
    answers = [name for ask, name in PAIRS if ask == chat and any(row.get(name) for row in rows)]
    if answers:
        raise DataError(
            f"{path} holds chats in the column '{chat}' and their answers in '{answers[0]}'. Rename the two to "
            "'prompt' and 'completion', which `row_format: prompt-completion` reads."
        )


def tree_in(row: Mapping[str, Any]) -> str:
    """Return in words what a row of conversation trees holds (OpenAssistant): a message, or a tree; "" for others."""
    if row.keys() >= MESSAGE_OF_TREE:
        return "single messages of conversation trees (columns 'text', 'role' and 'parent_id')"
    trees = (name for name, value in row.items() if isinstance(value, Mapping) and _is_node(value))
    return next((f"conversation trees (in the column '{name}')" for name in trees), "")


def _is_node(value: Mapping[str, Any]) -> bool:
    """Return whether a value is a message with its replies, rather than, say, a count of replies."""
    return "text" in value and isinstance(value.get("replies"), list | tuple)


def _as_text(column: str, nested: str | None) -> str:
    """Return how to read a column as plain text although the rows hold more, for errors; `nested` as above."""
    if nested is None:
        return f"use `--task pretrain` or name it in a recipe (`text_column: {column}`)"
    return nested.format(column)


def _check_trees(path: str, row: Mapping[str, Any], task: str | None, nested: str | None) -> None:
    """Refuse conversation trees, over many rows or one in each; single messages may be learnt as plain text."""
    held, single = tree_in(row), row.keys() >= MESSAGE_OF_TREE
    if held and not (single and task == "pretrain"):
        plain = f"; to learn the messages as plain text, {_as_text('text', nested)}"
        raise DataError(f"{path} holds {held}, and a chat must be in one row: {WRITE_PATHS}{plain if single else ''}.")


def _check_contests(path: str, rows: Sequence[Mapping[str, Any]], texts: Collection[str]) -> None:
    """Refuse two answers to each prompt, of which a judge chose one (Chatbot Arena)."""
    names = {name for row in rows for name in row}
    stems = (name.removesuffix("_a") for name in sorted(names) if name.endswith("_a") and f"{name[:-1]}b" in names)
    stem = next((stem for stem in stems if stem in (*ANSWERS, "conversation")), None)
    if stem is not None:
        one, other = f"{stem}_a", f"{stem}_b"
        key = "text_column" if one in texts else "messages_column"
        raise DataError(
            f"{path} holds two answers to each prompt ('{one}' and '{other}'), and it is not clear which to learn. "
            "Write the better one into a column 'chosen' and the other into 'rejected', which `row_format: preference` "
            f"reads; or name one in a recipe, such as `{key}: {one}`."
        )


def _check_answers(path: str, rows: Sequence[Mapping[str, Any]], texts: Collection[str], nested: str | None) -> None:
    """Refuse prompts whose answers are in a column without a usual name, or are several: one of them would be lost."""
    prompt = next((name for name in sorted(texts) if name.lower() in PROMPTS), None)
    counts = {name for row in rows for name, value in row.items() if isinstance(value, int | float)}
    names = dict.fromkeys(name for row in rows for name in row if row[name])
    # A number under a plural, such as `responses: 3`, counts answers that are elsewhere.
    answer = next((name for name in names if name.lower() in (ANSWER if name in counts else ANSWERS)), None)
    if prompt is None or answer is None:
        return
    if answer in texts:
        raise DataError(
            f"{path} holds prompts ('{prompt}') and answers ('{answer}') under names that no kind of rows has. Rename "
            f"them to 'prompt' and 'answer', or name them in a recipe: `text_column: {prompt}`, `target_column: "
            f"{answer}`."
        )
    if answer in counts:
        raise DataError(
            f"{path} holds prompts ('{prompt}') with numbers as answers ('{answer}'), and answers are learnt as text. "
            "Write each answer as a text into a column 'answer', and its prompt into 'prompt'; to learn the prompts "
            f"alone, {_as_text(prompt, nested)}."
        )
    raise DataError(
        f"{path} holds prompts ('{prompt}') with several answers, or answers with more about them, in the column "
        f"'{answer}'. Write each answer that is to be learnt as a row with the columns 'prompt' and 'answer'; to learn "
        f"the prompts alone, {_as_text(prompt, nested)}."
    )


def _check_transcripts(path: str, columns: Collection[str]) -> None:
    """Refuse preferences that are written as transcripts, or have their prompts under another name."""
    preference = ROW_FORMATS["preference"]
    if {preference.answer, *preference.unread} <= set(columns):
        if prompt := next((name for name in sorted(PROMPTS & set(columns))), None):
            raise DataError(
                f"{path} holds preferences whose prompts are in the column '{prompt}'. Rename it to "
                f"'{preference.prompt}', which `row_format: preference` reads."
            )
        raise DataError(
            f"{path} holds preferences with the prompts inside the texts (columns '{preference.answer}' and "
            f"'{preference.unread[0]}'). Write each text as a list of messages, or put what is asked into a column "
            f"'{preference.prompt}'; to learn whole texts, name one: `text_column: {preference.answer}`."
        )


def _parsed(value: Any) -> Any:
    """Return the list that a text is in JSON, or else the value."""
    try:
        return json.loads(value) if isinstance(value, str) and value.lstrip().startswith("[") else value
    except (ValueError, RecursionError):
        return value


def nested_texts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """Return the texts inside columns: the number of characters of each in all rows, and its dotted name."""
    sizes: dict[str, int] = {}
    for row in rows:
        for column, value in row.items():
            for name, text in texts_inside(value, column):
                sizes[name] = sizes.get(name, 0) + len(text)
    return [(size, name) for name, size in sizes.items() if size]


def _holds(rows: Sequence[Mapping[str, Any]], form: RowFormat, texts: Collection[str], chats: bool) -> bool:
    """Return whether rows are of a kind: its columns hold text, or `chats`, if the model learns these."""
    names = {name for row in rows for name in row}
    if form.unread and not names.issuperset(form.unread):
        return False
    if form.chat and _chats(rows, form.answer):
        return True
    column_names = (form.prompt, form.answer)
    if form.several:
        texts = {*texts} & {form.prompt} | text_columns(
            [{form.answer: first_answer(row.get(form.answer))} for row in rows]
        )
    return bool(form.prompt) and all(name in texts or (chats and _chats(rows, name)) for name in column_names)


def _chats(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether a column holds chats: lists of messages with role and content, or of texts if its name says so.

    The lists may be written as JSON text.
    """
    values = [_parsed(row[name]) for row in rows if row.get(name)]
    if not values or not all(isinstance(value, list) for value in values):
        return False
    texts = name in TURNS and all(isinstance(each, str) for value in values for each in value)
    return any(map(len, values)) and (texts or all(all(map(_message, value)) for value in values))


def _message(value: Any) -> bool:
    forms = ({"role", "content"}, {"role", "tool_calls"}, {"role", "parts"}, {"from", "value"})
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


def first_rows(path: str, key: str, split: str = "train") -> list[Mapping[str, Any]]:
    """Return the first rows of a corpus, with all their columns.

    Args:
        path: path of the corpus.
        key: the option or key that names it, for errors.
        split: the split to read of a folder whose file names indicate splits.

    Raises:
        DataError: it cannot be read.
    """
    if Corpus(path=path).on_hub:
        return list(islice(hub.load(Corpus(path=path, split=split, streaming=True)), LOOKED_AT))
    file = resolve_files(path, key, split)[0]
    return [row.values for row in islice(read_rows(file, stored_columns(file), gaps=True), LOOKED_AT)]
