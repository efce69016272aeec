"""Prepare prompts for the tasks that evaluate a language model without fine-tuning: limits, tokens, padding."""

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
"""Minimum number of prompt tokens for which there must be room."""


class Asks(Protocol):
    """The options of an end task that decide how its prompts are cut."""

    @property
    def name(self) -> str: ...
    @property
    def max_length(self) -> int | None: ...
    @property
    def keep_last(self) -> int: ...


def check_writes(task: TaskConfig, kind: Kind) -> None:
    """Refuse a masked model for a task that generates text or scores it from left to right.

    Raises:
        ModelError: the model is an encoder.
    """
    if kind == "encoder":
        raise ModelError(
            f"End task '{task.name}' is of kind {task.kind}, which needs a model that reads from left to right; a "
            "masked model only fills gaps. Remove it, or change `model.path`."
        )


class Asking:
    """Cut and batch the prompts of a task for a predictor.

    Args:
        task: the end task.
        predictor: the predictor to evaluate; all its models are of one kind.
        conditions: conditions of the evaluation.

    Attributes:
        kind: kind of the models.
        encoder: the tokenizer with its special tokens.
    """

    def __init__(self, task: Asks, predictor: Predictor, conditions: Conditions) -> None:
        self.task, self.conditions, self.models = task, conditions, models_of(predictor)
        self.kind = kind_of(self.models[0])
        self.encoder = Encoder(conditions.tokenizer, self.kind)
        self._longest = self._positions()

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Put every model in evaluation mode, without gradients, for the duration of a block."""
        with at_rest(self.models, self.conditions.device, self.conditions.bf16):
            yield

    def room(self, behind: int, advice: str) -> int:
        """Return the maximum tokens of a prompt, with special tokens, if `behind` tokens follow in the same row.

        Raises:
            ModelError: there is no room for a prompt; the message ends with `advice`.
        """
        most = self.left(behind)
        if most < SMALLEST:
            raise ModelError(
                f"End task '{self.task.name}': the model's longest input leaves "
                f"{wording.count(max(most, 0), 'token')} for a prompt "
                f"before the {behind} that follow it; at least {SMALLEST} are needed. {advice}"
            )
        return most

    def left(self, behind: int) -> int:
        """Return the same as :meth:`room`, but without an error if it is less than ``SMALLEST``."""
        apart = self.kind == "encoder-decoder"
        most = self._longest - (0 if apart else behind + (len(self.encoder.suffix) if self.kind == "encoder" else 0))
        return most if self.task.max_length is None else min(most, self.task.max_length)

    def _positions(self) -> int:
        """Return the longest input of tokenizer and models, less the positions that a method uses before a text."""
        most: int = self.conditions.tokenizer.model_max_length
        for model in self.models:
            longest = self.conditions.objective.longest_input(model)
            taken = sum(getattr(module, "taken_positions", 0) for module in model.modules())
            most = most if longest is None else min(most, longest - taken)
        return most

    def prompt(self, ids: Sequence[int], room: int) -> list[int]:
        """Return a prompt with its special tokens, cut to `room`; the task's `keep_last` tokens at its end are kept.

        If that is 0, the prompt is cut at its end for an encoder, and otherwise at its beginning.
        """
        prefix, suffix, last = self.encoder.prefix, self.encoder.suffix, self.task.keep_last
        if self.kind == "encoder-decoder":
            return [*prefix, *shortened(ids, room - len(prefix) - len(suffix), last), *suffix]
        own = room - len(prefix)
        kept = shortened(ids, own, last or own)
        # At least one token must precede the first predicted one.
        return [*prefix, *kept] or [self.encoder.pad if self.encoder.end is None else self.encoder.end]


def padded(rows: Sequence[Sequence[int]], value: int, to: int, *, left: bool = False, count: int = 0) -> Tensor:
    """Return rows as an int64 tensor, padded to a multiple of `to`, with empty rows up to `count`."""
    width = -(-max(len(row) for row in rows) // to) * to
    filled = [
        [value] * (width - len(row)) + list(row) if left else list(row) + [value] * (width - len(row)) for row in rows
    ]
    return torch.tensor([*filled, *[[value] * width] * (count - len(rows))], dtype=torch.long)
