"""Convert chats (lists of messages) with the tokenizer's template; the assistant's messages are learnt."""

from __future__ import annotations

import functools
import itertools
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
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a message with what the assistant thinks before it speaks, of which a template reads one or none."""
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


class TurnMarks(NamedTuple):
    """What a template writes around each turn of the assistant, wherever it stands in a chat.

    Attributes:
        begin: the special token of the turn's beginning, and what always follows it.
        prompt: `begin` and what else stands before an answer that is to be generated.
        ends: what may end a turn, the longest first; the special token of the end at least.
    """

    begin: str
    prompt: str
    ends: tuple[str, ...]


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
        self.fingerprint = hash_of(
            "chats", 3, str(template), *(["parts"] if self._takes_parts else []), *filter(None, [self._next_turn])
        )

    def text(self, messages: Sequence[Message], tools: Tools = ()) -> str:
        """Return a chat as the model reads it.

        Raises:
            DataError: the template refuses it.
        """
        return _SPELT.sub(r"\1", self._rendered(messages, tools)[0])

    def learnt(self, messages: Sequence[Message]) -> list[str]:
        """Return the assistant's messages that are learnt, tool calls among them."""
        marks = self._marks(self._template(()))
        return [each.text_and_calls for number, each in enumerate(messages) if each.learnt and (marks or number > 0)]

    def spells_special(self, messages: Sequence[Message], tools: Tools = ()) -> bool:
        """Return whether a message or a tool holds the text of a special token."""
        marked = self._marked([*(message.as_dict() for message in messages), *tools])
        return _OPEN in json.dumps(marked, ensure_ascii=False)

    def encode(self, messages: Sequence[Message], tools: Tools = ()) -> tuple[list[int], list[bool]]:
        """Return the token ids of a chat, and which of them are learnt: the assistant's, with the end of its turn.

        Templates with `{% generation %}` mark these themselves. With other templates, the chat is rendered up to before
        and after each turn of the assistant, and both texts should be beginnings of the complete text. Where they are
        not (Qwen3 leaves out the reasoning of earlier turns), turns are found by the special tokens around them. If the
        chat begins with the assistant, only a template can mark that turn. Where a turn ends only because the next one
        begins (GLM-4.5), the special token of that beginning is learnt, and added to the last turn.

        Raises:
            DataError: the template refuses the chat, changes earlier turns in another way, or leaves out tools, what
                the assistant says or thinks, or what it is told.
        """
        text, spans = self._rendered(messages, tools)
        if self._marks(self._template(tools)):
            apart = {n for n, each in enumerate(messages) if each.role == ASSISTANT and not each.learnt}
            before = {n: self._marked_in(messages[:n], tools) for end in apart for n in (end, end + 1)}
            left_out = {place for n in apart for place in range(before[n], before[n + 1])}
            spans = [span for place, span in enumerate(spans) if place not in left_out]
        else:
            text += self._next_turn if messages[-1].role == ASSISTANT else ""
            learnt = [number for number, message in enumerate(messages) if message.learnt and number > 0]
            turns = [self._turn(text, messages, tools, number) for number in learnt]
            if None in turns:
                all_turns = self._turns_by_marks(text, messages)
                turns = [all_turns[number] for number in learnt]
            spans = [(turn[0], self._with_end(text, turn[1])) for turn in turns if turn is not None]
        self._check_assistant(text, spans, messages)
        self._check_others(text, messages)
        self._check_thoughts(messages, tools)
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
        last += self._tokenised(self._next_turn)[0]
        end = next((number for number in last if number in self.special_ids), None)
        if end is None or not middle or middle[0] not in self.special_ids:
            raise DataError(
                "The tokenizer's chat template does not end each message with a special token, so that nothing tells "
                "where a message ends that the model writes. Use a tokenizer whose template does (`model.tokenizer`)."
            )
        return ChatFrame(first, middle, end)

    def _turn(self, text: str, messages: Sequence[Message], tools: Tools, number: int) -> Span | None:
        """Return where a turn of the assistant stands in the text of a chat; None if what precedes it is changed."""
        before = self._rendered(messages[:number], tools, add_generation_prompt=True)[0]
        after = self._rendered(messages[: number + 1], tools)[0]
        return (len(before), len(after)) if after.startswith(before) and text.startswith(after) else None

    def _turns_by_marks(self, text: str, messages: Sequence[Message]) -> dict[int, Span]:
        """Return where each turn of the assistant stands in the text of a chat, by its number in the chat."""
        speaking = [number for number, each in enumerate(messages) if each.role == ASSISTANT]
        begin, prompt, ends = self._turn_marks
        # What is spelt out inside a message stands behind a mark.
        begins = [*re.finditer(f"(?<!{_OPEN}){re.escape(begin)}", text)] if begin else []
        closing = re.compile(f"(?<!{_OPEN})(?:{'|'.join(map(re.escape, ends)) or '(?!)'})")
        spans: dict[int, Span] = {}
        for number, match in zip(speaking, begins, strict=False):
            start = match.start() + len(prompt if text.startswith(prompt, match.start()) else begin)
            if (end := closing.search(text, start)) is not None:
                spans[number] = start, end.end()
        if len(begins) != len(speaking) or len(spans) != len(speaking):
            raise DataError(
                "The tokenizer's chat template writes earlier turns differently when later ones follow, so what "
                "the assistant says cannot be told apart. Use a template with `{% generation %}`, or chats of one "
                "question and one answer."
            )
        return spans

    @functools.cached_property
    def _turn_marks(self) -> TurnMarks:
        """What the template writes around turns; with no beginning or no end where these are no special tokens."""
        question, answer = Message("user", _QUESTION), Message(ASSISTANT, _ANSWER)
        prompt = self._rendered([question], (), add_generation_prompt=True)[0].partition(_QUESTION)[2]
        last, earlier = (
            self._rendered(chat, ())[0].partition(_QUESTION)[2].partition(_ANSWER)
            for chat in ([question, answer], [question, answer, question])
        )
        begin = _common_beginning(prompt, last[0], earlier[0])
        place = max((match.start() for match in self._special.finditer(begin)), default=len(begin))
        follows = earlier[2].partition(_QUESTION)[0]
        closing = self._special.search(follows)
        ends = [
            last[2] if follows.startswith(last[2]) else "" if closing is None else follows[: closing.end()],
            last[2],
        ]
        ends = sorted({end for end in ends if self._special.search(end)}, key=len, reverse=True)
        return TurnMarks(begin[place:], prompt[place:], tuple(ends))

    @functools.cached_property
    def _next_turn(self) -> str:
        """The special token with which the next turn begins; "" if a turn of the assistant has an end of its own."""
        chat = [Message("user", _QUESTION), Message(ASSISTANT, _ANSWER), Message("user", _QUESTION)]
        try:
            if self._special.search(self._rendered(chat[:2], ())[0].rpartition(_ANSWER)[2]):
                return ""
            follows = self._rendered(chat, ())[0].rpartition(_ANSWER)[2].partition(_QUESTION)[0]
        except DataError:
            return ""
        begins = self._special.search(follows)
        return "" if begins is None else begins.group()

    def _with_end(self, text: str, end: int) -> int:
        """Return the end of a turn, moved behind the special token with which the next turn begins, if that ends it."""
        begins = re.compile(rf"\s*(?:{self._special.pattern})").match(text, end) if self._next_turn else None
        return end if begins is None else begins.end()

    @functools.cached_property
    def _takes_parts(self) -> bool:
        """Whether the template reads contents only as lists of parts, as those of vision-language models."""
        chat = [Message("user", _QUESTION), Message(ASSISTANT, _ANSWER)]
        for parts in (False, True):
            try:
                if _ANSWER in self._render(chat, (), parts=parts)[0]:
                    return parts
            except DataError:
                continue
        return False

    def _check_assistant(self, text: str, spans: Sequence[Span], messages: Sequence[Message]) -> None:
        """Refuse a template that leaves out what the assistant says: the last line of each learnt turn is missing."""
        assistant_text = "".join(text[start:end] for start, end in spans)
        for message in messages[1:]:
            last = self._marked(message.content).strip().rpartition("\n")[2].strip()
            if message.learnt and last not in assistant_text:
                raise DataError(
                    f"The tokenizer's chat template leaves out what the assistant says ('{message.content:.40}'). Use "
                    "another tokenizer (`model.tokenizer`)."
                )

    def _check_others(self, text: str, messages: Sequence[Message]) -> None:
        """Refuse a template that leaves out what the system or the user says, such as one without system messages."""
        for message in messages:
            last = self._marked(message.content).strip().rpartition("\n")[2].strip()
            if message.role in ("system", "user") and last not in text:
                raise DataError(
                    f"The tokenizer's chat template leaves out what the {message.role} says ('{message.content:.40}'). "
                    "Write it into a message of the user that is not left out, or use another tokenizer "
                    "(`model.tokenizer`)."
                )

    def _check_thoughts(self, messages: Sequence[Message], tools: Tools) -> None:
        """Refuse a template that never reads what the assistant thinks; many leave it out of earlier turns."""
        thoughts = [key for each in messages if each.learnt for key in _THOUGHTS if each.fields.get(key)]
        template = self._template(tools)
        if thoughts and not any(key in template for key in thoughts):
            raise DataError(
                f"The tokenizer's chat template leaves out what the assistant thinks (`{thoughts[0]}`). Remove that "
                "key, rename it to one that the template reads, or use another tokenizer (`model.tokenizer`)."
            )

    def _marked_in(self, messages: Sequence[Message], tools: Tools) -> int:
        """Return how many spans of the assistant a template marks in the beginning of a chat."""
        speaks = any(each.role == ASSISTANT for each in messages)
        return len(self._rendered(messages, tools)[1]) if speaks else 0

    def _check_tools(self, text: str, spans: Sequence[Span], messages: Sequence[Message], tools: Tools) -> None:
        """Refuse a template that leaves out tools or calls: the model would learn what it cannot see or say."""
        assistant_text = "".join(text[start:end] for start, end in spans)
        # The assistant's first turn may not be learnt, and then has no place.
        calls = [call["name"] for message in messages[1:] if message.learnt for call in message.calls]
        left_out = next((f"the call of '{name}'" for name in calls if name not in assistant_text), None)
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
        return self._render(messages, tools, add_generation_prompt=add_generation_prompt, parts=self._takes_parts)

    def _render(
        self, messages: Sequence[Message], tools: Tools, *, add_generation_prompt: bool = False, parts: bool
    ) -> tuple[str, list[Span]]:
        from transformers.utils.chat_template_utils import render_jinja_template

        render: Any = render_jinja_template
        template = self._template(tools)
        marks = self._marks(template) and not add_generation_prompt
        forms = [self._marked([message.as_dict() for message in messages])]
        if parts:
            forms = [[_content_as_parts(message) for message in forms[0]]]
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
        encoding = encoded("\n" + piece if follows else piece)
        moved = 1 if follows else 0
        if encoding["input_ids"][: len(line)] != line:
            encoding, line, moved = encoded(piece), [], 0
        ids = encoding["input_ids"][len(line) :]
        if plain and self.tokenizer.convert_tokens_to_ids(piece) in ids:
            raise DataError(
                f"A message holds '{piece}', which this tokenizer reads as its special token wherever it stands. "
                "Remove it from the messages."
            )
        return ids, [(start - moved, end - moved) for start, end in encoding["offset_mapping"][len(line) :]]


def _common_beginning(*texts: str) -> str:
    """Return the text with which all texts begin."""
    alike = itertools.takewhile(lambda each: len({*each}) == 1, zip(*texts, strict=False))
    return "".join(each[0] for each in alike)


def _content_as_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose content is a list of one part."""
    return {**message, "content": [{"type": "text", "text": message.get("content", "")}]}


def _arguments_as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose tool calls have their arguments as JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}
