"""Measure whether a chat model still ends its turns: greedy answers in its tokenizer's chat template.

An answer counts (``chats``) if the model ends its turn within the allowed tokens, with the token that ends a turn in
the template (``ends_turn``), and wrote none of the template's other tokens before, neither as a token nor spelled out
(``clean``). The content of an answer is not judged; end tasks do that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field

from everlearn.data.blocks import hash_of
from everlearn.data.readers import read_rows, resolve_files
from everlearn.errors import DataError, ModelError, first_line
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import register_mean
from everlearn.evaluation.task import BYTES_PER_TOKEN, Conditions, Task, TaskConfig, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.predictors.predictor import Predictor
from everlearn.tasks.generation import continued
from everlearn.tasks.prompted import Asking
from everlearn.wording import count

PROMPTS = (
    "Hello! Who are you?",
    "What is the capital of France?",
    "What is 17 plus 25?",
    "Name three primary colours.",
    "Translate 'good morning' into Spanish.",
    "Write one sentence about the sea.",
    "Which is heavier, a kilogram of iron or a kilogram of feathers?",
    "Is water wet? Answer yes or no.",
    "What is the opposite of 'early'?",
    "Give me a synonym of 'quick'.",
    "How many days does a leap year have?",
    "Say 'thank you' politely.",
    "What do bees make?",
    "Finish the sentence: The early bird catches the",
    "Explain in one sentence what a dictionary is.",
    "Who wrote 'Romeo and Juliet'?",
    "Put these words in alphabetical order: pear, apple, fig.",
    "Suggest a name for a black cat.",
    "What colour do you get when you mix blue and yellow?",
    "Which planet do we live on?",
    "Tell me a very short joke.",
    "Correct the spelling: 'recieve'.",
    "In which month does winter begin in Norway?",
    "Thanks, that was all. Goodbye!",
)
"""Default prompts: short questions with short answers."""


class ChatTask(TaskConfig):
    """Whether a chat model still chats: it ends its turn, and its answers contain no parts of its chat template."""

    paths = ("prompts",)
    name: str = "chat"
    """Name of its column in tables."""
    kind: Literal["chat"] = "chat"
    """Answers to prompts in the form of the tokenizer's chat template."""
    prompts: str | None = None
    """Files with your own prompts, in the column `prompt_column` or one a line. Default: 24 short prompts."""
    prompt_column: str = "text"
    """Column with the prompts."""
    system: str | None = None
    """Text of the system turn. Default: no system turn."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Number of tokens within which a turn must end."""

    def read_prompts(self) -> list[str]:
        """Return the prompts; raise ``DataError`` if there are none."""
        if self.prompts is None:
            return list(PROMPTS)
        prompts: list[Any] = [
            (row.where, row.values[self.prompt_column])
            for file in resolve_files(self.prompts, "evaluation.chat.prompts")
            for row in read_rows(file, [self.prompt_column], limits=self.limits)
        ]
        if wrong := next((where for where, prompt in prompts if not isinstance(prompt, str) or not prompt), None):
            raise DataError(f"{wrong}: column '{self.prompt_column}' must hold a prompt.")
        if not prompts:
            raise DataError(f"`evaluation.chat.prompts: {self.prompts}` is empty.")
        return [prompt for _, prompt in prompts]


def switched(value: Any) -> Any:
    """Return the mapping of options for `true` or `false` in a recipe; anything else is returned unchanged."""
    return {} if value is True else None if value is False else value


ANSWER = "An answer, 24."
"""An assistant's turn from which a template is read."""

register_mean("chats", "Still chats", "chats")
register_mean("ends_turn", "Ends its turn", "ends_turn")
register_mean("clean", "Shows nothing of its template", "clean")


@register_kind(ChatTask)
class Chat(Task):
    """Answer prompts in the tokenizer's chat template."""

    kind = "chat"
    shared = False  # the key of shared cells does not include the chat template
    config: ChatTask

    @cached_property
    def prompts(self) -> list[str]:
        """Return the prompts; raise ``DataError`` if they cannot be read."""
        return self.config.read_prompts()

    def check(self) -> str:
        return f"{count(len(self.prompts), 'prompt')}, {count(self.config.max_new_tokens, 'token')} to answer each"

    def check_model(self, kind: Kind) -> None:
        if kind == "encoder":
            raise ModelError(
                "`evaluation.chat` needs a model that generates text; a masked model only fills gaps. Remove it."
            )

    def check_tokenizer(self, tokenizer: Any) -> None:
        template_of(tokenizer)

    def fingerprint(self) -> str:
        marks = self.config.model_dump_json(exclude={"name", "domain", "prompts"})
        return hash_of(self.kind, marks, self.prompts)

    def texts(self) -> Sequence[str]:
        return self.prompts

    def work(self, seeds: int) -> Work:
        tokens = sum(len(prompt.encode()) for prompt in self.prompts) // (BYTES_PER_TOKEN * len(self.prompts)) + 1
        return Work(len(self.prompts), rows=len(self.prompts), tokens=tokens + self.config.max_new_tokens)

    def measure(self, predictor: Predictor, conditions: Conditions) -> Cell:
        template = template_of(conditions.tokenizer)
        asking = Asking(_Limits(self.name), predictor, conditions)
        most = self.config.max_new_tokens
        first = [{"role": "system", "content": self.config.system}] if self.config.system else []
        rows = [_ids(conditions.tokenizer, [*first, {"role": "user", "content": p}], True) for p in self.prompts]
        room = asking.room(most, f"Lower `evaluation.chat.max_new_tokens` (now {most}).")
        if (longest := max(map(len, rows))) > room:
            raise ModelError(
                f"`evaluation.chat`: the longest prompt has {longest} tokens, and the model's longest input leaves "
                f"{room} for it. Shorten the prompts, or lower `evaluation.chat.max_new_tokens`."
            )
        answers = continued(asking, predictor, rows, most, [template.end])
        ended = np.array([len(ids) < most for ids in answers], np.float64)
        texts = [conditions.tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in answers]
        clean = np.array([not any(mark in text for mark in template.marks) for text in texts], np.float64)
        return Cell(
            self.kind,
            self.name,
            conditions.row,
            {"chats": ended * clean, "ends_turn": ended, "clean": clean},
            texts=tuple(map(str, texts)),
            fingerprint=self.fingerprint(),
        )


@dataclass(frozen=True)
class Template:
    """Parts that a chat template adds around a text.

    Attributes:
        end: id of the token that ends the assistant's turn.
        marks: the tokenizer's other special tokens in text form, and any other text between two turns that is not a
            plain word, such as ``[INST]``.
    """

    end: int
    marks: tuple[str, ...]


@dataclass(frozen=True)
class _Limits:
    """Hold the options that :class:`Asking` reads of an end task."""

    name: str
    max_length: None = None
    keep_last: int = 0


def template_of(tokenizer: Any) -> Template:
    """Read the chat template of a tokenizer from its rendering of a conversation.

    Raises:
        ModelError: there is no template, or it does not end a turn with a special token.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"`evaluation.chat` needs the tokenizer's chat template, and '{tokenizer.name_or_path}' has none. Remove "
            "it, or set `model.tokenizer` to that of the chat model."
        )
    special = {*tokenizer.all_special_ids, *(number for number, added in _added(tokenizer).items() if added.special)}
    question = {"role": "user", "content": "Hello."}
    answered = [question, {"role": "assistant", "content": ANSWER}]
    # In some templates only the beginning of the next turn ends a turn (GLM-4.5).
    ends = (_end(tokenizer, turns, special) for turns in (answered, [*answered, question]))
    end = next((number for number in ends if number is not None), None)
    if end is None:
        raise ModelError(
            f"The chat template of '{tokenizer.name_or_path}' does not end a turn with a special token, so "
            "`evaluation.chat` cannot tell where an answer ends. Remove it."
        )
    words = {str(tokenizer.convert_ids_to_tokens(number)) for number in special}
    ending = str(tokenizer.convert_ids_to_tokens(end))
    return Template(end, tuple(sorted({*(words - {ending}), *_between(tokenizer, words)})))


def _end(tokenizer: Any, turns: list[dict[str, str]], special: set[int]) -> int | None:
    """Return the first special token behind the answer in a conversation."""
    ids, decoded = _ids(tokenizer, turns, False), ""
    for place, number in enumerate(ids):
        decoded += tokenizer.decode([number], clean_up_tokenization_spaces=False)
        if ANSWER in decoded:
            return next((number for number in ids[place + 1 :] if number in special), None)
    return None


def _between(tokenizer: Any, words: set[str]) -> set[str]:
    """Return the template's text before a turn of the assistant or the user, without special tokens."""
    contents = ("One, 1.", "Two, 2.", "Three, 3.")
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    text, marks = _text(tokenizer, turns, False), set()
    for one, other in itertools.pairwise(contents):
        mark = text.partition(one)[2].partition(other)[0]
        for word in words:
            mark = mark.replace(word, "")
        if len(mark.strip()) > 2 and not mark.strip().isalnum():
            marks.add(mark.strip())
    return marks


def _added(tokenizer: Any) -> dict[int, Any]:
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _ids(tokenizer: Any, turns: list[dict[str, str]], open_turn: bool) -> list[int]:
    """Return the token ids of a conversation, with the start of the assistant's turn if `open_turn`."""
    return list(tokenizer(_text(tokenizer, turns, open_turn), add_special_tokens=False, verbose=False)["input_ids"])


def _text(tokenizer: Any, turns: list[dict[str, str]], open_turn: bool) -> str:
    """Return a conversation as the template writes it, which may read contents as lists of parts only."""
    parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]
    written, errors = [], []
    for form in (turns, parts):
        try:
            written.append(str(tokenizer.apply_chat_template(form, tokenize=False, add_generation_prompt=open_turn)))
        except Exception as error:  # a template is a program and can raise anything
            errors.append(error)
    if not written:
        raise ModelError(
            f"The chat template of '{tokenizer.name_or_path}' cannot be used: {first_line(errors[0]).rstrip('.')}."
        ) from errors[0]
    return next((text for text in written if turns[-1]["content"].strip() in text), written[0])
