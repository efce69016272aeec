"""Find the answers of a batch that can demonstrate how to answer, and show them to a teacher in its context."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everlearn.data.chats import ChatFormat
from everlearn.data.tokenize import Encoder
from everlearn.methods.stage import Batch
from everlearn.model.content import CONTENT
from everlearn.model.objectives import IGNORE

HERE = "{demonstration}"
"""In the text for the teacher: where the answer stands."""


@dataclass(frozen=True)
class Demonstration:
    """An answer in a batch.

    Attributes:
        row: its row in the batch.
        start: the first token of its document in the row.
        stop: the first token behind its document.
        context: the ids before the answer, which the student reads.
        shown: the same with the answer in it, which the teacher reads.
        end: id of the token that ends the answer.
    """

    row: int
    start: int
    stop: int
    context: list[int]
    shown: list[int]
    end: int


class Demonstrations:
    """Finds the last complete answer of each chat, or of each prompt with an answer.

    An answer is complete if a special token ends it. The teacher reads it at the end of the last message before it, if
    the template ends that message as it ends one of the user; and at the end of a prompt that no template has written.

    Args:
        encoder: encoder of the model, a decoder.
        text: what the teacher reads behind the question, with :data:`HERE` for the answer.

    Raises:
        DataError: the chat template cannot end a message.
    """

    def __init__(self, encoder: Encoder, text: str) -> None:
        tokenizer: Any = encoder.tokenizer
        self._decode: Callable[[Sequence[int]], str] = tokenizer.decode
        self._before, self._behind = encoder([part.strip(" ") for part in text.split(HERE)])
        added = tokenizer.added_tokens_decoder
        self._special = {*tokenizer.all_special_ids, *(n for n, token in added.items() if token.special)}
        templated = getattr(tokenizer, "chat_template", None)
        self._between = ChatFormat(tokenizer).frame().between if templated else []

    def of(self, batch: Batch) -> list[Demonstration]:
        """Return the demonstrations in a batch of packed rows that lies on the CPU."""
        if CONTENT not in batch:  # plain text
            return []
        ids, starts = batch["input_ids"].numpy(), batch["position_ids"].numpy() == 0
        learnt = np.zeros(ids.shape, bool)
        rows, columns = np.nonzero(batch["labels"].numpy() != IGNORE)
        learnt[rows, batch["positions"].numpy()[rows, columns] + 1] = True
        demonstrations = []
        for row in range(len(ids)):
            edges = [*np.flatnonzero(starts[row]), ids.shape[1]]
            for start, stop in itertools.pairwise(edges):
                parts = self._in(ids[row, start:stop].tolist(), learnt[row, start:stop])
                if parts is not None:
                    demonstrations.append(Demonstration(row, int(start), int(stop), *parts))
        return demonstrations

    def _in(self, ids: list[int], learnt: np.ndarray) -> tuple[list[int], list[int], int] | None:
        """Return context, context with the demonstration, and end of the last complete answer of a document."""
        edges = np.flatnonzero(np.diff(learnt, prepend=False, append=False))
        for first, last in reversed([*zip(edges[::2], edges[1::2], strict=True)]):
            context, answer = ids[:first], ids[first:last]
            ending = next((at for at in reversed(range(len(answer))) if answer[at] in self._special), None)
            question = self._question(context)
            if ending and question and not self._decode(answer[ending + 1 :]).strip():
                shown = [*context[:question], *self._before, *answer[:ending], *self._behind, *context[question:]]
                return context, shown, answer[ending]
        return None

    def _question(self, context: list[int]) -> int | None:
        """Return where the last question of a context ends; None if it does not end with one."""
        if len(context) > 1 and not self._special.intersection(context[1:]):
            return len(context)  # a prompt; of plain text no more than the first token is not learnt
        ends = [at for at, number in enumerate(context) if number in self._between[:1]]
        for at in ends[-len(self._between) :]:
            if self._decode(context[at:]).rstrip() == self._decode(self._between).rstrip():
                return at
        return None


def answers_at(batch: Batch, demonstrations: list[Demonstration]) -> Tensor:
    """Return which labels of a batch are in the documents of demonstrations, [B, K] bool."""
    labels, positions = batch["labels"], batch["positions"]
    inside = torch.zeros_like(labels, dtype=torch.bool)
    for each in demonstrations:
        inside[each.row] |= (positions[each.row] >= each.start) & (positions[each.row] < each.stop)
    return inside & (labels != IGNORE)
