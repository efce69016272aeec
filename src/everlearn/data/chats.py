"""Convert chats (lists of messages) with the tokenizer's template; the assistant's messages are learnt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everlearn.data.blocks import hash_of
from everlearn.data.corpus import Corpus
from everlearn.data.messages import ASSISTANT, Message
from everlearn.data.tokenize import Kind
from everlearn.errors import DataError, ModelError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TODAY = "{%- macro strftime_now(format) -%}26 July 2024{%- endmacro -%}"
"""Put before a template that writes today's date, so that rows do not depend on the day."""
_GENERATION = re.compile(r"\{%-?\s*generation\b")
"""Block of a template that marks what the assistant says."""
_OPEN, _CLOSE = "\ue0fe", "\ue0ff"
"""Private-use characters that mark the text of a special token inside a message, which is tokenised as plain text."""
_SPELT = re.compile(f"{_OPEN}([^{_OPEN}{_CLOSE}]*){_CLOSE}|[{_OPEN}{_CLOSE}]")
Tools = Sequence[dict[str, Any]]
Span = tuple[int, int]
_QUESTION, _ANSWER = "\ue0fc", "\ue0fd"
"""Characters for private use that stand for a question and an answer."""


class ChatFrame(NamedTuple):
    """What a template writes around a question and its answer, as token ids.

    Attributes:
        before: before the question: a system message, if the template has one of its own, and the user's role.
        between: from the end of the question, a special token, to the beginning of the answer.
        end: the special token that ends the answer.
    """

    before: list[int]
    between: list[int]
    end: int


def uses_template(corpus: Corpus, tokenizer: Any, kind: Kind) -> bool:
    """Return whether the rows of a corpus are written by the tokenizer's chat template.

    Chats always are. Rows with a prompt and its answer (`row_format`) are if the tokenizer has a template and the model
    is a decoder.
    """
    if corpus.form is None or corpus.form.chat:
        return corpus.messages_column is not None or corpus.form is not None
    return kind == "decoder" and bool(getattr(tokenizer, "chat_template", None))


class ChatFormat:
    """Converter from chats to token ids, with a mark on those that are learnt.

    Only the template can write special tokens: inside a message or a tool the text of one is tokenised as plain text,
    as by ``apply_chat_template(…, sanitize_control_tokens=True)``, which does not return the assistant's tokens. Added
    tokens that are not special (`<think>`, `<tool_call>`) are read as tokens.

    Args:
        tokenizer: the model's tokenizer, with a chat template.

    Raises:
        ModelError: it has none, or has no character offsets of its tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        template: Any = getattr(tokenizer, "chat_template", None)
        if not template:
            raise ModelError(
                "The tokenizer has no chat template, which chats need. Use the tokenizer of an instruct "
                "model (`model.tokenizer`), or write prompts and answers into two columns (`target_column`)."
            )
        if not tokenizer.is_fast:
            raise ModelError("Chats need a fast tokenizer, which knows where in a text its tokens are.")
        self.tokenizer = tokenizer
        added = {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset(added)
        special = sorted(added.values(), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")
        self.fingerprint = hash_of("chats", 2, str(template))

    def text(self, messages: Sequence[Message], tools: Tools = ()) -> str:
        """Return a chat as the model reads it.

        Raises:
            DataError: the template refuses it.
        """
        return _SPELT.sub(r"\1", self._rendered(messages, tools)[0])

    def learnt(self, messages: Sequence[Message]) -> list[str]:
        """Return the assistant's messages that are learnt, tool calls among them."""
        marks = self._marks(self._template(()))
        return [each.said for number, each in enumerate(messages) if each.learnt and (marks or number > 0)]

    def spells_special(self, messages: Sequence[Message], tools: Tools = ()) -> bool:
        """Return whether a message or a tool holds the text of a special token."""
        marked = self._marked([*(message.as_dict() for message in messages), *tools])
        return _OPEN in json.dumps(marked, ensure_ascii=False)

    def encode(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[list[int], list[bool]]:
        """Return the token ids of a chat, and which of them are learnt: the assistant's, with the end of its turn.

        Templates with `{% generation %}` mark these themselves. With other templates, the chat is rendered up to before
        and after each turn of the assistant, and both texts must be beginnings of the complete text. If the chat begins
        with the assistant, only a template can mark that turn.

        Raises:
            DataError: the template refuses the chat, changes earlier turns, or leaves out tools.
        """
        text, spans = self._rendered(messages, tools)
        if self._marks(self._template(tools)):
            apart = {n for n, each in enumerate(messages) if each.role == ASSISTANT and not each.learnt}
            before = {n: self._marked_in(messages[:n], tools) for end in apart for n in (end, end + 1)}
            left_out = {place for n in apart for place in range(before[n], before[n + 1])}
            spans = [span for place, span in enumerate(spans) if place not in left_out]
        else:
            spans = [
                self._turn(text, messages, tools, number)
                for number, message in enumerate(messages)
                if message.learnt and number > 0
            ]
        self._check_tools(text, spans, messages, tools)
        ids, places = self._tokenised(text)
        return ids, [any(first < end and last > start for start, end in spans) for first, last in places]

    def frame(self) -> ChatFrame:
        """Return what the template writes around a question and its answer.

        Raises:
            DataError: the template does not end questions and answers with a special token, so it is unknown where a
                generated question or answer ends.
        """
        question, answer = Message("user", _QUESTION), Message(ASSISTANT, _ANSWER)
        before, _, between = self._rendered([question], (), add_generation_prompt=True)[0].partition(_QUESTION)
        behind = self._rendered([question, answer], ())[0].rpartition(_ANSWER)[2]
        # A blank at the end belongs to the first word that follows it.
        first, middle, last = (self._tokenised(text.rstrip(" "))[0] for text in (before, between, behind))
        end = next((number for number in last if number in self.special_ids), None)
        if end is None or not middle or middle[0] not in self.special_ids:
            raise DataError(
                "The tokenizer's chat template does not end each message with a special token, so that nothing tells "
                "where a message ends that the model writes. Use a tokenizer whose template does (`model.tokenizer`)."
            )
        return ChatFrame(first, middle, end)

    def _turn(self, text: str, messages: Sequence[Message], tools: Tools, number: int) -> Span:
        """Return where a turn of the assistant stands in the text of a chat."""
        before = self._rendered(messages[:number], tools, add_generation_prompt=True)[0]
        after = self._rendered(messages[: number + 1], tools)[0]
        if not (after.startswith(before) and text.startswith(after)):
            raise DataError(
                "The tokenizer's chat template writes earlier turns differently when later ones follow, so what "
                "the assistant says cannot be told apart. Use a template with `{% generation %}`, or chats of one "
                "question and one answer."
            )
        return len(before), len(after)

    def _marked_in(self, messages: Sequence[Message], tools: Tools) -> int:
        """Return how many spans of the assistant a template marks in the beginning of a chat."""
        speaks = any(each.role == ASSISTANT for each in messages)
        return len(self._rendered(messages, tools)[1]) if speaks else 0

    def _check_tools(self, text: str, spans: Sequence[Span], messages: Sequence[Message], tools: Tools) -> None:
        """Refuse a template that leaves out tools or calls: the model would learn what it cannot see or say."""
        said = "".join(text[start:end] for start, end in spans)
        # The assistant's first turn may not be learnt, and then has no place.
        calls = [call["name"] for message in messages[1:] if message.learnt for call in message.calls]
        left_out = next((f"the call of '{name}'" for name in calls if name not in said), None)
        if tools and left_out is None and self._rendered(messages, ())[0] == text:
            left_out = "the tools of a chat"
        if left_out is not None:
            raise DataError(
                f"The tokenizer's chat template leaves out {left_out}. Use a tokenizer whose template writes tools "
                "(`model.tokenizer`), or chats without them."
            )

    def _template(self, tools: Tools) -> str:
        """Return the template for chats with or without tools; a tokenizer may have one for each."""
        template = self.tokenizer.get_chat_template(tools=list(tools) or None)
        return TODAY + template if "strftime_now" in template else template

    @staticmethod
    def _marks(template: str) -> bool:
        """Return whether a template marks what the assistant says."""
        return bool(_GENERATION.search(template))

    def _marked(self, value: Any) -> Any:
        """Return a value in which special tokens that are spelt out are marked."""
        if isinstance(value, str):
            return self._special.sub(f"{_OPEN}\\g<0>{_CLOSE}", value.replace(_OPEN, "").replace(_CLOSE, ""))
        if isinstance(value, Mapping):
            return {key: self._marked(each) for key, each in value.items()}
        return [self._marked(each) for each in value] if isinstance(value, list | tuple) else value

    def _rendered(
        self, messages: Sequence[Message], tools: Tools, *, add_generation_prompt: bool = False
    ) -> tuple[str, list[Span]]:
        """Return a chat's text, with marks around spelt-out special tokens, and the spans that the template marks."""
        from transformers.utils.chat_template_utils import render_jinja_template

        render: Any = render_jinja_template
        template = self._template(tools)
        marks = self._marks(template) and not add_generation_prompt
        forms = [self._marked([message.as_dict() for message in messages])]
        if calls := any(message.calls for message in messages):
            forms.append([_arguments_as_text(message) for message in forms[0]])  # what a few templates read
        errors = []
        for form in forms:
            try:
                texts, spans = render(
                    [form],
                    self._marked(list(tools)) or None,
                    chat_template=template,
                    return_assistant_tokens_mask=marks,
                    add_generation_prompt=add_generation_prompt,
                    **self.tokenizer.special_tokens_map,
                )
            except Exception as error:  # a template raises what it likes
                errors.append(error)
            else:
                return texts[0], spans[0] if marks else []
        roles = ", ".join(each.role for each in messages) + (", with tool calls" if calls else "")
        raise DataError(
            f"The tokenizer's chat template refuses a chat of the roles {roles}: {first_line(errors[0])}"
        ) from None

    def _tokenised(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the token ids of a text with marks, and the span of each token in it."""
        ids: list[int] = []
        places: list[Span] = []
        at = 0
        for mark in [*_SPELT.finditer(text), None]:
            end = len(text) if mark is None else mark.start()
            pieces = [(at, end, False)] if mark is None else [(at, end, False), (*mark.span(1), True)]
            for first, last, plain in pieces:
                if last > first:
                    own, inside = self._piece(text[first:last], first > 0, plain)
                    ids += own
                    places += [(first + start, first + stop) for start, stop in inside]
            at = end if mark is None else mark.end()
        return ids, places

    def _piece(self, piece: str, follows: bool, plain: bool) -> tuple[list[int], list[Span]]:
        """Return the token ids of a piece of a text and their places, without special tokens where it is `plain`.

        A piece that follows another is tokenised after the end of a line, as transformers does: some tokenizers write
        a space at the beginning of a text.
        """

        def encoded(text: str) -> Any:
            return self.tokenizer(
                text,
                add_special_tokens=False,
                split_special_tokens=plain,
                return_offsets_mapping=True,
                verbose=False,
            )

        line = encoded("\n")["input_ids"] if follows else []
        found = encoded("\n" + piece if follows else piece)
        moved = 1 if follows else 0
        if found["input_ids"][: len(line)] != line:
            found, line, moved = encoded(piece), [], 0
        ids = found["input_ids"][len(line) :]
        if plain and self.tokenizer.convert_tokens_to_ids(piece) in ids:
            raise DataError(
                f"A message holds '{piece}', which this tokenizer reads as its special token wherever it stands. "
                "Remove it from the messages."
            )
        return ids, [(start - moved, end - moved) for start, end in found["offset_mapping"][len(line) :]]


def _arguments_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose tool calls have their arguments as JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}
