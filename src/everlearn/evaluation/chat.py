"""Does a model that was tuned to chat still chat? Greedy answers in the form of its tokenizer's template.

An answer counts (``chats``) where the model ends its turn within so many tokens with the token that the template ends
a turn with (``ends_turn``), and has written none of the template's other tokens before, neither as a token nor spelled
out (``clean``). What is said is not judged: that is what end tasks are for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from everlearn.data.blocks import hash_of
from everlearn.data.chat import ChatTask
from everlearn.errors import ModelError, first_line
from everlearn.evaluation.asking import Asking
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.generation import continued
from everlearn.evaluation.metrics import register_mean
from everlearn.evaluation.predictor import Predictor
from everlearn.evaluation.task import Conditions, Task, Work, register_kind
from everlearn.model.anatomy import Kind
from everlearn.wording import count

_BYTES_PER_TOKEN = 4
"""About, for a plan."""
ANSWER = "An answer, 24."
"""What the assistant says where a template is read."""

register_mean("chats", "Still chats", "chats")
register_mean("ends_turn", "Ends its turn", "ends_turn")
register_mean("clean", "Shows nothing of its template", "clean")


@register_kind(ChatTask)
class Chat(Task):
    """Asks prompts in the tokenizer's chat template."""

    kind = "chat"
    shared = False  # what cells are shared by does not know a tokenizer's chat template

    def __init__(self, config: ChatTask) -> None:
        self.name, self.domain, self.config = config.name, config.domain, config

    @cached_property
    def prompts(self) -> list[str]:
        """What is asked; raises ``DataError``."""
        return self.config.asked()

    def check(self) -> str:
        return f"{count(len(self.prompts), 'prompt')}, {count(self.config.max_new_tokens, 'token')} to answer each"

    def check_model(self, kind: Kind) -> None:
        if kind == "encoder":
            raise ModelError("`evaluation.chat` needs a model that writes; a masked model fills gaps. Leave it out.")

    def check_tokenizer(self, tokenizer: Any) -> None:
        template_of(tokenizer)

    def fingerprint(self) -> str:
        marks = self.config.model_dump_json(exclude={"name", "domain", "prompts"})
        return hash_of(self.kind, marks, self.prompts)

    def texts(self) -> Sequence[str]:
        return self.prompts

    def work(self, seeds: int) -> Work:
        tokens = sum(len(prompt.encode()) for prompt in self.prompts) // (_BYTES_PER_TOKEN * len(self.prompts)) + 1
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
    """What a chat template puts around a text.

    Attributes:
        end: id of the token that ends the assistant's turn.
        marks: the tokenizer's other special tokens as they are written, and what else the template writes between two
            turns, such as ``[INST]``, where it is no plain word.
    """

    end: int
    marks: tuple[str, ...]


@dataclass(frozen=True)
class _Limits:
    """What :class:`Asking` reads of an end task."""

    name: str
    max_length: None = None
    keep_last: int = 0


def template_of(tokenizer: Any) -> Template:
    """The chat template of a tokenizer, read from what it makes of a conversation.

    Raises:
        ModelError: there is none, or it does not end a turn with a token of its own.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"`evaluation.chat` asks as the tokenizer's chat template says, and '{tokenizer.name_or_path}' has none. "
            "Leave it out, or set `model.tokenizer` to that of the model that was tuned to chat."
        )
    ids = _ids(tokenizer, [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": ANSWER}], False)
    special = {*tokenizer.all_special_ids, *(number for number, added in _added(tokenizer).items() if added.special)}
    said, behind = "", -1
    for place, number in enumerate(ids):
        said += tokenizer.decode([number], clean_up_tokenization_spaces=False)
        if ANSWER in said:
            behind = place
            break
    end = next((number for number in ids[behind + 1 :] if number in special), None) if behind >= 0 else None
    if end is None:
        raise ModelError(
            f"The chat template of '{tokenizer.name_or_path}' ends no turn with a token of its own, so "
            "`evaluation.chat` cannot tell where an answer ends. Leave it out."
        )
    words = {str(tokenizer.convert_ids_to_tokens(number)) for number in special}
    ending = str(tokenizer.convert_ids_to_tokens(end))
    return Template(end, tuple(sorted({*(words - {ending}), *_between(tokenizer, words)})))


def _between(tokenizer: Any, words: set[str]) -> set[str]:
    """What the template writes before an assistant's and a user's turn, without special tokens."""
    said = ("One, 1.", "Two, 2.", "Three, 3.")
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    text, found = _text(tokenizer, turns, False), set()
    for one, other in itertools.pairwise(said):
        mark = text.partition(one)[2].partition(other)[0]
        for word in words:
            mark = mark.replace(word, "")
        if len(mark.strip()) > 2 and not mark.strip().isalnum():
            found.add(mark.strip())
    return found


def _added(tokenizer: Any) -> dict[int, Any]:
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _ids(tokenizer: Any, turns: list[dict[str, str]], open_turn: bool) -> list[int]:
    """Ids of a conversation; with the beginning of the assistant's turn where it is open."""
    return list(tokenizer(_text(tokenizer, turns, open_turn), add_special_tokens=False, verbose=False)["input_ids"])


def _text(tokenizer: Any, turns: list[dict[str, str]], open_turn: bool) -> str:
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=open_turn))
    except Exception as error:  # a template is a program of its own
        raise ModelError(
            f"The chat template of '{tokenizer.name_or_path}' cannot be used: {first_line(error).rstrip('.')}."
        ) from error
