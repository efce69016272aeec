"""Convert chats, lists of messages, with the tokenizer's template; the assistant's messages are learnt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everlearn.data.blocks import hash_of
from everlearn.errors import DataError, ModelError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASSISTANT = "assistant"
ROLES = {"human": "user"} | dict.fromkeys(("gpt", "bot", "model", "chatgpt", "ai", "gpt-3.5", "gpt-4"), ASSISTANT)
"""What other formats (ShareGPT) call a role."""
TODAY = "{%- macro strftime_now(format) -%}26 July 2024{%- endmacro -%}"
"""What a template that writes today's date begins with here, so that rows do not depend on the day."""
_GENERATION = re.compile(r"\{%-?\s*generation\b")
"""Block of a template that marks what the assistant says."""


class Message(NamedTuple):
    """One turn of a chat."""

    role: str
    content: str


def messages_in(value: Any, column: str, where: str) -> tuple[Message, ...]:
    """Return the messages in a column of a row; none for a row without a chat.

    Messages are mappings with `role` and `content`, or with `from` and `value` (ShareGPT). A content may be a list of
    parts of the type `text`.

    Raises:
        DataError: the column holds something else.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise _wrong(where, column, "holds no list of messages", value)
    found = []
    for number, each in enumerate(value, 1):
        if not isinstance(each, Mapping):
            raise _wrong(where, column, f"message {number} is no mapping", each)
        if each.get("tool_calls"):
            raise _wrong(where, column, f"message {number} calls tools, which is not learnt", each["tool_calls"])
        names = ("role", "content") if "role" in each else ("from", "value")
        if any(name not in each for name in names):
            raise _wrong(where, column, f"message {number} lacks `role` and `content` (or `from` and `value`)", each)
        role, content = (each[name] for name in names)
        if isinstance(content, list):
            content = _joined(content, f"message {number}", column, where)
        if not isinstance(role, str) or not (content is None or isinstance(content, str)):
            raise _wrong(where, column, f"role and content of message {number} are no texts", each)
        if content is not None:
            found.append(Message(ROLES.get(role.lower(), role.lower()), content))
    return tuple(found)


def _joined(parts: Sequence[Any], what: str, column: str, where: str) -> str:
    """Return the text of a content that is a list of parts."""
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _wrong(where, column, f"{what} has a part that is no text", part)
    return "".join(part["text"] for part in parts)


def _wrong(where: str, column: str, what: str, value: Any) -> DataError:
    return DataError(
        f"{where}: column '{column}' (`messages_column`): {what} ({value!r:.60}). Write each chat as a list: "
        '[{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}].'
    )


class ChatFormat:
    """Converter from chats to token ids, with a mark on those that are learnt.

    Args:
        tokenizer: of the model; it needs a chat template.

    Raises:
        ModelError: it has none, or has no character offsets of its tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        template: Any = getattr(tokenizer, "chat_template", None)
        if not template:
            raise ModelError(
                "The tokenizer has no chat template, which `messages_column` needs. Use the tokenizer of an instruct "
                "model (`model.tokenizer`), or write prompts and answers into two columns (`target_column`)."
            )
        if not tokenizer.is_fast:
            raise ModelError("`messages_column` needs a fast tokenizer, which knows where in a text its tokens are.")
        self.tokenizer = tokenizer
        self._marks = isinstance(template, str) and bool(_GENERATION.search(template))
        dated = isinstance(template, str) and "strftime_now" in template
        self._given = {"chat_template": TODAY + template} if dated else {}
        self.fingerprint = hash_of("chats", str(template))

    def text(self, messages: Sequence[Message]) -> str:
        """Return a chat as the model reads it.

        Raises:
            DataError: the template refuses it.
        """
        return str(self._applied(messages, tokenize=False))

    def learnt(self, messages: Sequence[Message]) -> list[str]:
        """Return the assistant's messages that are learnt."""
        return [each.content for number, each in enumerate(messages) if each.role == ASSISTANT and self._taught(number)]

    def _taught(self, number: int) -> bool:
        """Whether a turn of the assistant is learnt: a first one has no question, which only a template can mark."""
        return self._marks or number > 0

    def encode(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """Return the token ids of a chat, and which of them the assistant says, its end of turn included.

        Templates with `{% generation %}` mark that themselves. Of others the text before and behind each turn of the
        assistant is compared: it must be the beginning of the text of the whole chat.

        Raises:
            DataError: the template refuses the chat, or changes earlier turns.
        """
        if self._marks:
            given: Any = self._applied(
                messages,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
                tokenizer_kwargs={"verbose": False},
            )
            return list(given["input_ids"]), [bool(each) for each in given["assistant_masks"]]
        text, spans = self.text(messages), []
        for number, message in enumerate(messages):
            if message.role != ASSISTANT or not self._taught(number):
                continue
            before = str(self._applied(messages[:number], tokenize=False, add_generation_prompt=True))
            behind = self.text(messages[: number + 1])
            if not (behind.startswith(before) and text.startswith(behind)):
                raise DataError(
                    "The tokenizer's chat template writes earlier turns differently when later ones follow, so what "
                    "the assistant says cannot be told apart. Use a template with `{% generation %}`, or chats of one "
                    "question and one answer."
                )
            spans.append((len(before), len(behind)))
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets: Any = encoded["offset_mapping"]
        ids: Any = encoded["input_ids"]
        return list(ids), [any(first < end and last > start for start, end in spans) for first, last in offsets]

    def _applied(self, messages: Sequence[Message], **options: Any) -> Any:
        try:
            return self.tokenizer.apply_chat_template([each._asdict() for each in messages], **self._given, **options)
        except Exception as error:  # a template raises what it likes
            roles = ", ".join(each.role for each in messages)
            raise DataError(
                f"The tokenizer's chat template refuses a chat of the roles {roles}: {first_line(error)}"
            ) from None
