"""What the kinds of end task share that ask a language model as it is: limits, tokens, batches of one shape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from everlearn import wording
from everlearn.data.packing import shortened
from everlearn.data.tokenize import Encoder
from everlearn.errors import ModelError
from everlearn.model.anatomy import Kind, kind_of
from everlearn.predictors.predictor import Predictor, at_rest, models_of

if TYPE_CHECKING:
    from everlearn.evaluation.task import Conditions, TaskConfig

SMALLEST = 8
"""Tokens of a prompt that there must be room for."""


class Asks(Protocol):
    """What is read of an end task: its name, and how its prompts are cut."""

    @property
    def name(self) -> str: ...
    @property
    def max_length(self) -> int | None: ...
    @property
    def keep_last(self) -> int: ...


def check_writes(task: TaskConfig, kind: Kind) -> None:
    """Refuse a model that fills masks: what comes next is nothing that it knows.

    Raises:
        ModelError: the model is an encoder.
    """
    if kind == "encoder":
        raise ModelError(
            f"End task '{task.name}' is of kind {task.kind}, which needs a model that reads from left to right; a "
            "masked model fills gaps. Leave it out, or change `model.path`."
        )


class Asking:
    """How a predictor is asked the prompts of a task.

    Args:
        task: the end task.
        predictor: who is asked; all its models are of one kind.
        conditions: how it is measured.

    Attributes:
        kind: of the models.
        encoder: the tokenizer with its special tokens.
    """

    def __init__(self, task: Asks, predictor: Predictor, conditions: Conditions) -> None:
        self.task, self.conditions, self.models = task, conditions, models_of(predictor)
        self.kind = kind_of(self.models[0])
        self.encoder = Encoder(conditions.tokenizer, self.kind)
        self._longest = self._positions()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Inside, every model is in evaluation mode and nothing is kept for a backward pass."""
        with at_rest(self.models, self.conditions.device, self.conditions.bf16):
            yield

    def room(self, behind: int, advice: str) -> int:
        """Tokens of a prompt, special ones included, where `behind` tokens follow in the same row.

        Raises:
            ModelError: there is no room for a prompt; the sentence ends with the advice.
        """
        most = self.left(behind)
        if most < SMALLEST:
            raise ModelError(
                f"End task '{self.task.name}': the model's longest input leaves "
                f"{wording.count(max(most, 0), 'token')} for a prompt "
                f"beside {behind} that follow it; at least {SMALLEST} are needed. {advice}"
            )
        return most

    def left(self, behind: int) -> int:
        """As :meth:`room`, whatever it is: with less than ``SMALLEST`` nothing can be asked."""
        apart = self.kind == "encoder-decoder"
        most = self._longest - (0 if apart else behind + (len(self.encoder.suffix) if self.kind == "encoder" else 0))
        return most if self.task.max_length is None else min(most, self.task.max_length)

    def _positions(self) -> int:
        """The longest input of tokenizer and models; what a method puts before a text leaves it fewer."""
        most: int = self.conditions.tokenizer.model_max_length
        for model in self.models:
            longest = self.conditions.objective.longest_input(model)
            taken = sum(getattr(module, "taken_positions", 0) for module in model.modules())
            most = most if longest is None else min(most, longest - taken)
        return most

    def prompt(self, ids: Sequence[int], room: int) -> list[int]:
        """A prompt with its special tokens, cut to the room: in front of the tokens that the task keeps of its end.

        Where it keeps none: before an encoder at its end, else at its beginning.
        """
        prefix, suffix, last = self.encoder.prefix, self.encoder.suffix, self.task.keep_last
        if self.kind == "encoder-decoder":
            return [*prefix, *shortened(ids, room - len(prefix) - len(suffix), last), *suffix]
        own = room - len(prefix)
        kept = shortened(ids, own, last or own)
        # Something must stand before the first token that is predicted.
        return [*prefix, *kept] or [self.encoder.pad if self.encoder.end is None else self.encoder.end]


def padded(rows: Sequence[Sequence[int]], value: int, to: int, *, left: bool = False, count: int = 0) -> Tensor:
    """Rows as a tensor, int64, padded to a multiple of `to`, with empty rows up to `count`."""
    width = -(-max(len(row) for row in rows) // to) * to
    filled = [
        [value] * (width - len(row)) + list(row) if left else list(row) + [value] * (width - len(row)) for row in rows
    ]
    return torch.tensor([*filled, *[[value] * width] * (count - len(rows))], dtype=torch.long)
