"""The messages of a chat and its tools, read from a row in the common shapes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from everlearn.errors import DataError

ASSISTANT = "assistant"
CALLS = "function_call"
"""Role (LLaMA-Factory) of a message that is nothing but a tool call, and OpenAI's earlier name of a message's call."""
ROLES = {
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt", "ai", "gpt-3.5", "gpt-4", "bing", "bard", "claude"), ASSISTANT),
    **dict.fromkeys(("observation", "function", "function_response", "tool_response"), "tool"),
}
"""Role in other formats (ShareGPT) → role."""
WEIGHT = "weight"
"""Key of a message (OpenAI, ShareGPT) that is 0 if the assistant says it and it is not learnt."""
WEIGHTS = (WEIGHT, "loss", "train", "training")
"""All keys that say so, with 0 or false (ms-swift, Axolotl)."""
TURNS = ("conversations", "conversation", "messages", "dialog", "dialogue", "turns", "data")
"""Usual names of columns whose lists of texts are chats (LIMA, UltraChat, DailyDialog)."""
_READ = ("role", "content", "parts", "from", "value", "tool_calls", CALLS, *WEIGHTS)
"""Keys of a message that are not passed to the template as they are."""


class Message(NamedTuple):
    """One turn of a chat.

    Attributes:
        role: `user`, `assistant`, `system`, `tool`, or another one that the template knows.
        content: its text.
        fields: further keys for the template, such as `tool_calls`, `tool_call_id` and `reasoning_content`.
        trained: whether it is learnt if the assistant says it; not in a prompt, nor with `weight: 0` or `loss: false`.
    """

    role: str
    content: str
    fields: Mapping[str, Any] = {}
    trained: bool = True

    @property
    def learnt(self) -> bool:
        """Return whether the assistant says it and it is learnt."""
        return self.role == ASSISTANT and self.trained

    def as_dict(self) -> dict[str, Any]:
        """Return the message as templates read it; a message that only calls tools has no `content`."""
        content = {} if not self.content and self.calls else {"content": self.content}
        return {"role": self.role, **content, **self.fields}

    @property
    def calls(self) -> Sequence[Mapping[str, Any]]:
        """The functions that it calls, each with `name` and `arguments`."""
        return [call["function"] for call in self.fields.get("tool_calls", ())]

    @property
    def text_and_calls(self) -> str:
        """Return its text and its tool calls as JSON, whose bytes are counted."""
        return "\n".join([*([self.content] if self.content else []), *map(_json, self.calls)])


def messages_in(value: Any, column: str, where: str, key: str = "messages_column") -> tuple[Message, ...]:
    """Return the messages in a column of a row; none for a row without a chat.

    Messages are mappings with `role` and `content`, with `role` and `parts` (Gemini) or with `from` and `value`
    (ShareGPT). A content may be a list of parts of the type `text`. Tool calls are in `tool_calls`, with arguments as a
    mapping or as JSON. A message is not learnt if one of :data:`WEIGHTS` is 0 or false. A list of texts is what the
    user and the assistant say in turn. The list may be written as JSON text. Errors name the recipe's `key`.

    Raises:
        DataError: the column holds something else.
    """
    if value is None:
        return ()
    wrong = _Wrong(
        where,
        f"column '{column}' (`{key}`)",
        'Write each chat as a list: [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}].',
    )
    if isinstance(value, str):
        value = _parsed(value, wrong) if value.strip() else ()
    if not isinstance(value, list | tuple):
        wrong("holds no list of messages", value)
    if all(isinstance(each, str) for each in value):
        return tuple(
            Message(role, text) for role, text in zip(itertools.cycle(("user", ASSISTANT)), value, strict=False)
        )
    messages = [_message(each, f"message {number}", wrong) for number, each in enumerate(value, 1)]
    return tuple(each for each in messages if each is not None)


def tools_in(value: Any, column: str, where: str, key: str = "tools_column") -> tuple[dict[str, Any], ...]:
    """Return the tools in a column of a row, as templates read them; none for a row without tools.

    Tools are a list, or JSON of a list, of `{"type": "function", "function": {"name": …, "parameters": …}}` or of the
    value of `function` alone.

    Raises:
        DataError: the column holds something else.
    """
    wrong = _Wrong(
        where,
        f"column '{column}' (`{key}`)",
        'Write tools as a list: [{"type": "function", "function": {"name": "…", "parameters": {…}}}].',
    )
    listed = _parsed(value, wrong) if isinstance(value, str) and value.strip() else _without_none(value)
    if not listed:
        return ()
    if not isinstance(listed, list):
        wrong("holds no list of tools", value)
    return tuple({"type": "function", "function": _function(each, "tool", wrong)} for each in listed)


class _Wrong:
    """Raises the error for a value that cannot be read."""

    def __init__(self, where: str, column: str, form: str) -> None:
        self.where, self.column, self.form = where, column, form

    def __call__(self, what: str, value: Any) -> NoReturn:
        raise DataError(f"{self.where}: {self.column}: {what} ({value!r:.60}). {self.form}")


def _message(each: Any, what: str, wrong: Callable[..., NoReturn]) -> Message | None:
    """Return a message; None for one that says nothing and calls nothing."""
    if not isinstance(each, Mapping):
        wrong(f"{what} is no mapping", each)
    names = ("role", "parts" if "parts" in each else "content") if "role" in each else ("from", "value")
    calls = [*(each.get("tool_calls") or ()), *([each[CALLS]] if each.get(CALLS) else [])]
    if names[0] not in each or (names[1] not in each and not calls):
        wrong(f"{what} lacks `role` and `content` (or `from` and `value`)", each)
    role, content = each[names[0]], each.get(names[1])
    if isinstance(content, list):
        content = _joined(content, what, wrong)
    if not isinstance(role, str) or not (content is None or isinstance(content, str)):
        wrong(f"role and content of {what} are no texts", each)
    if role.lower() == CALLS:
        written = _parsed(content or "", wrong)
        role, content, calls = ASSISTANT, None, written if isinstance(written, list) else [written]
    weights = {key: each.get(key) for key in WEIGHTS}
    if odd := next((key for key, weight in weights.items() if weight not in (None, 0, 1)), None):
        wrong(f"the `{odd}` of {what} is neither 0 nor 1", each)
    fields = {key: value for key, value in _without_none(each).items() if key not in _READ}
    if calls:
        fields["tool_calls"] = [_call(call, f"{what} has a tool call that", wrong) for call in calls]
    if content is None and not calls:
        return None
    return Message(ROLES.get(role.lower(), role.lower()), content or "", fields, trained=0 not in weights.values())


def _joined(parts: Sequence[Any], what: str, wrong: Callable[..., NoReturn]) -> str:
    """Return the text of a content that is a list of parts."""
    for part in parts:
        if not isinstance(part, Mapping) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            wrong(f"{what} has a part that is no text", part)
        if part.get("thought"):  # Gemini's reasoning, beside the answer
            wrong(f"{what} has a part that is a thought: move it to `reasoning_content`, or leave it out", part)
    return "".join(part["text"] for part in parts)


def _call(value: Any, what: str, wrong: Callable[..., NoReturn]) -> dict[str, Any]:
    """Return a tool call with its arguments as a mapping, as templates read it."""
    function = _function(value, what, wrong)
    arguments = function.get("arguments") or {}
    arguments = _parsed(arguments, wrong) if isinstance(arguments, str) else _without_none(arguments)
    if not isinstance(arguments, Mapping):
        wrong(f"{what} has arguments that are no mapping", value)
    own = {"id": value["id"]} if value.get("id") else {}
    return {**own, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _function(value: Any, what: str, wrong: Callable[..., NoReturn]) -> Mapping[str, Any]:
    """Return the function of a tool call, nested under `function` or not; refuse one without a name."""
    function = value.get("function", value) if isinstance(value, Mapping) else value
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        wrong(f"{what} has no `name`", value)
    return function


def _parsed(text: str, wrong: Callable[..., NoReturn]) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        wrong("holds text that is no JSON", text)


def _without_none(value: Any) -> Any:
    """Remove None at any depth: Arrow adds keys that only other rows have, with None as their value."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_without_none(each) for each in value]
    return value


def _json(function: Mapping[str, Any]) -> str:
    return json.dumps({key: function[key] for key in ("name", "arguments")}, ensure_ascii=False)
