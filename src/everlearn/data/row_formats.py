"""Rows that are known by the names of their columns: chats, instructions, prompts with answers, preferences.

A recipe names one of them in `row_format`. Readers, `everlearn init` and error messages share this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from everlearn.data.messages import ASSISTANT, Message, messages_in, tools_in
from everlearn.data.rows import text_in
from everlearn.errors import DataError

TEXT_COLUMNS = ("text", "content", "body", "document", "article", "abstract", "review", "passage")
"""Usual names of a text column; the first that exists is used."""
TOOLS = "tools"
"""Column with the tools of a chat."""
LABEL = "label"
"""Column of TRL's unpaired preferences (KTO) that is true where an answer is desired."""
DESIRED = {**dict.fromkeys(("true", "1", "1.0", ""), True), **dict.fromkeys(("false", "0", "0.0"), False)}
"""Value of that column as text → whether the answer is desired."""
SYSTEM = ("system", "system_prompt", "systemInstruction")
"""Columns with the system message of a row; the first that is not empty is used."""
_ALPACA = (
    "Below is an instruction that describes a task{paired}. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\n{{prompt}}\n\n{context}### Response:{end}"
)


@dataclass(frozen=True)
class RowFormat:
    """A kind of row.

    What is asked and answered is text, or a list of messages each: then the row is a chat.

    Attributes:
        name: name in a recipe.
        answer: column with the answer, or with a chat of which the assistant's messages are learnt.
        prompt: column with what is asked; "" if the answer's column holds all of the chat.
        context: column with what the prompt is about, which rows may leave empty or lack; "" if there is none.
        plain: the prompt where no chat template writes it.
        plain_with_context: the same for a row with a context.
        before_answer: what stands before the answer where no chat template writes it.
        chat: whether a chat template always writes the rows.
        unread: columns by which the rows are known too, and which are not read.
        several: whether the answer's column holds several answers, as a list or inside `text`; the first is learnt.
        note: what a user should know of them.
    """

    name: str
    answer: str
    prompt: str = ""
    context: str = ""
    plain: str = "{prompt}"
    plain_with_context: str = ""
    before_answer: str = ""
    chat: bool = False
    unread: tuple[str, ...] = ()
    several: bool = False
    note: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that every file must have."""
        return (self.answer,) if self.chat else (self.prompt, self.answer)

    @property
    def optional(self) -> tuple[str, ...]:
        """The columns that are read where they exist."""
        own = (self.prompt,) if self.chat else (self.context, LABEL)
        return (*filter(None, own), TOOLS, *SYSTEM)

    @property
    def separated(self) -> bool:
        """Return whether a template stands between what is asked and its answer, even where it is no chat template."""
        return self.chat or not self.plain.endswith("{prompt}")

    def undesired(self, values: Mapping[str, Any], where: str) -> bool:
        """Return whether a row is marked as one whose answer is not desired: by false or 0, or their texts in a table.

        Raises:
            DataError: the mark is something else.
        """
        label = None if self.chat else values.get(LABEL)
        if label is None:
            return False
        desired = DESIRED.get(str(label).strip().lower())
        if desired is None:
            raise DataError(
                f"{where}: '{LABEL}' is {label!r:.40}, and marks with true or false (1 or 0) whether the answer is "
                f"desired. If it means something else, rename it, or name the columns to read in `text_column` and "
                "`target_column`, in place of `row_format`."
            )
        return not desired

    def only_chat(self, values: Mapping[str, Any]) -> bool:
        """Return whether nothing but a chat template can write a row: one column or more holds a list of messages."""
        texts = (self.prompt,) if self.several else self.columns
        return self.chat or any(isinstance(values.get(column), list | tuple) for column in texts)

    def messages(self, values: Mapping[str, Any], where: str) -> tuple[Message, ...]:
        """Return a row as a chat; none if it has no answer.

        What the assistant says in a prompt is not learnt. An answer may repeat the prompt: all of it, or, where that is
        text, a chat that a user begins.

        Raises:
            DataError: a column holds something else, or nothing is asked.
        """
        chat = self._messages(self.answer, ASSISTANT, values, where)
        if chat and self.prompt:
            question = self._messages(self.prompt, "user", values, where)
            begun = any(message.role == "user" for message in chat)
            if not question and not begun:
                raise DataError(
                    f"{where}: '{self.answer}' has no message of a user, and there is no '{self.prompt}' "
                    f"(`row_format: {self.name}`). Put what is asked into the column '{self.prompt}'."
                )
            if chat[: len(question)] == question:
                chat = chat[len(question) :]
            elif begun and isinstance(values.get(self.prompt), str):
                question = ()
            chat = (*(each._replace(trained=each.role != ASSISTANT) for each in question), *chat)
        system = self._system(values, where)
        return (Message("system", system), *chat) if system and chat and chat[0].role != "system" else chat

    def _messages(self, column: str, role: str, values: Mapping[str, Any], where: str) -> tuple[Message, ...]:
        """Return the messages in a column, which holds a list of them or a text; the context follows a prompt."""
        value = self._value(column, values)
        if not self.prompt or isinstance(value, list | tuple) or (self.chat and not isinstance(value, str)):
            return messages_in(value, column, where, "row_format")
        columns = (column, self.context) if column == self.prompt else (column,)
        texts = [text for each in columns if (text := text_in(self._value(each, values), each, where)).strip()]
        return (Message(role, "\n".join(texts)),) if texts else ()

    def _value(self, column: str, values: Mapping[str, Any]) -> Any:
        """Return the value of a column; of several answers the first."""
        value = values.get(column)
        return first_answer(value) if self.several and column == self.answer else value

    def tools(self, values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], ...]:
        """Return the tools of a chat.

        Raises:
            DataError: their column holds something else.
        """
        return tools_in(values.get(TOOLS), TOOLS, where, "row_format")

    def example(self, values: Mapping[str, Any], where: str) -> tuple[str, str]:
        """Return a row as a prompt and its answer, as they are written without a chat template.

        Both are empty if one of the columns is.

        Raises:
            DataError: a column does not hold text.
        """
        prompt, context, answer = (
            text_in(self._value(column, values), column, where) for column in (self.prompt, self.context, self.answer)
        )
        if not prompt.strip() or not answer.strip():
            return "", ""
        template = self.plain_with_context if context.strip() else self.plain
        text, system = template.format(prompt=prompt, context=context), self._system(values, where)
        return f"{system}\n\n{text}" if system else text, f"{self.before_answer}{answer}"

    def _system(self, values: Mapping[str, Any], where: str) -> str:
        """Return the system message that a row has in a column of its own: text, or a message."""
        texts = (
            "".join(each.content for each in messages_in([{"role": "system", **value}], column, where, "row_format"))
            if isinstance(value := values.get(column), Mapping)
            else text_in(value, column, where)
            for column in SYSTEM
        )
        return next((text for text in texts if text.strip()), "")


ROW_FORMATS = {
    each.name: each
    for each in (
        RowFormat(
            "preference",
            "chosen",
            "prompt",
            chat=True,
            unread=("rejected",),
            note=(
                "Of preferences the chosen answers are learnt. To learn from the rejected ones too, train with one of "
                "TRL's trainers, which `everlearn.protect` protects."
            ),
        ),
        RowFormat("messages", "messages", chat=True),
        RowFormat("sharegpt", "conversations", chat=True),
        RowFormat("gemini", "contents", chat=True),
        RowFormat(  # the prompts of github.com/tatsu-lab/stanford_alpaca, train.py
            "alpaca",
            "output",
            "instruction",
            "input",
            plain=_ALPACA.format(paired="", context="", end=""),
            plain_with_context=_ALPACA.format(
                paired=", paired with an input that provides further context",
                context="### Input:\n{context}\n\n",
                end="",
            ),
        ),
        RowFormat(  # those of github.com/databrickslabs/dolly, training/consts.py
            "dolly",
            "response",
            "instruction",
            "context",
            plain=_ALPACA.format(paired="", context="", end="\n"),
            plain_with_context=_ALPACA.format(paired="", context="Input:\n{context}\n\n", end="\n"),
        ),
        RowFormat("prompt-completion", "completion", "prompt"),
        *(RowFormat(f"prompt-{answer}", answer, "prompt") for answer in ("response", "answer")),
        *(  # as in the Language Model Evaluation Harness, of which BoolQ and SciQ have a context
            RowFormat(
                f"{prompt}-{answer}",
                answer,
                prompt,
                "context",
                plain="Question: {prompt}\nAnswer:",
                plain_with_context="{context}\nQuestion: {prompt}\nAnswer:",
                before_answer=" ",
                several=answer == "answers",
                note="Of several answers the first is learnt; rows without any are left out."
                if answer == "answers"
                else "",
            )
            for prompt in ("question", "query")
            for answer in ("answer", "response", "answers")
        ),
    )
}
"""Name in a recipe → format, in the order in which they are looked for."""
PAIRS = (
    *((each.prompt, each.answer) for each in ROW_FORMATS.values() if not (each.chat or each.several)),
    ("input", "output"),
    ("input", "target"),
    ("inputs", "targets"),
    ("source", "target"),
    ("context", "continuation"),
)
"""Usual names of columns of prompts and answers; the first pair that exists is used."""


def first_answer(value: Any) -> Any:
    """Return the first of several answers: a list of them, or a mapping (as in SQuAD) with theirs in `text`."""
    while isinstance(value, list | tuple | Mapping):
        value = value.get("text") if isinstance(value, Mapping) else next(iter(value), None)
    return value


def format_with(columns: Iterable[str]) -> RowFormat | None:
    """Return the format of rows with these columns; None if they have no common one."""
    there = set(columns)
    return next((each for each in ROW_FORMATS.values() if there.issuperset((*each.columns, *each.unread))), None)
