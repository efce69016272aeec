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
from typing import Any, Literal

import numpy as np
from pydantic import Field

from everlearn.data.blocks import hash_of
from everlearn.data.readers import read_rows, resolve_files
from everlearn.errors import DataError, ModelError, first_line
from everlearn.evaluation.cell import Cell
from everlearn.evaluation.metrics import register_mean
from everlearn.evaluation.task import Conditions, Task, TaskConfig, Work, register_kind
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
"""Asked where no file is named: short questions with short answers."""


class ChatTask(TaskConfig):
    """Whether a model that was tuned to chat still does: it ends its turn, and shows nothing of its template."""

    paths = ("prompts",)
    name: str = "chat"
    """Its column in every table."""
    kind: Literal["chat"] = "chat"
    """Answers to prompts in the form of the tokenizer's chat template."""
    prompts: str | None = None
    """Files with prompts of your own, in the column `prompt_column`, or a line each; two dozen short ones when left
    out."""
    prompt_column: str = "text"
    """Column with the prompts."""
    system: str | None = None
    """What stands in the system's turn; no such turn when left out."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Tokens within which a turn must end."""

    def asked(self) -> list[str]:
        """The prompts; raises ``DataError`` where there are none."""
        if self.prompts is None:
            return list(PROMPTS)
        found: list[Any] = [
            (row.where, row.values[self.prompt_column])
            for file in resolve_files(self.prompts, "evaluation.chat.prompts")
            for row in read_rows(file, [self.prompt_column], limits=self.limits)
        ]
        if wrong := next((where for where, prompt in found if not isinstance(prompt, str) or not prompt), None):
            raise DataError(f"{wrong}: column '{self.prompt_column}' must hold a prompt.")
        if not found:
            raise DataError(f"`evaluation.chat.prompts: {self.prompts}` is empty.")
        return [prompt for _, prompt in found]


def switched(value: Any) -> Any:
    """`true` as a recipe may have it in the place of the mapping."""
    return {} if value is True else None if value is False else value


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
