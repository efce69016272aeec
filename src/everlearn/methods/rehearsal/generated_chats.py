"""Pack chats, each a question and an answer, that an instruct model generates with its template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from everlearn.data.blocks import Block
from everlearn.data.chats import ChatFormat
from everlearn.data.packing import IGNORED, AnswerPacker
from everlearn.data.tokenize import Encoder
from everlearn.predictors.decoding import Ending, continuation, decode, left_padded


class GeneratedChats(AnswerPacker):
    """Generated chats of one question and one answer, packed with labels on the answers.

    Behind the beginning of a user's message in its template an instruct model writes what it was trained to be asked
    (Magpie, arXiv 2406.08464), and behind the beginning of an answer what it would have answered. Both are sampled at
    temperature 1 and have half of a row each. Chats whose question has no end, or in which the model writes a special
    token inside a message, are dropped; an answer that is too long is cut off, and no end of it is learnt.

    Args:
        encoder: encoder of the model.
        block_size: tokens in a block.

    Raises:
        ModelError: the tokenizer has no chat template.
        DataError: its template does not end messages with a special token.
    """

    def __init__(self, encoder: Encoder, block_size: int) -> None:
        super().__init__(encoder, block_size, None)
        form = ChatFormat(encoder.tokenizer)
        self._frame, self._special = form.frame(), form.special_ids

    def generate(self, model: nn.Module, generators: Sequence[torch.Generator]) -> list[list[int]]:
        """Generate chats, special tokens included; each depends on its generator only."""
        before, between, end = self._frame
        room = self.block_size - len(before) - len(between)
        most = room // 2
        if most < 1:
            return []
        draws = torch.stack([torch.rand(room, generator=each, dtype=torch.float64) for each in generators])
        device = next(model.parameters()).device

        def sampled(rows: Sequence[list[int]], stop: int, draws: torch.Tensor) -> list[list[int]]:
            steps = continuation(model, left_padded(rows, self.encoder.pad, device))
            return decode(steps, Ending(draws.shape[1], (stop,), temperature=1, draws=draws))

        questions = sampled([before] * len(draws), between[0], draws[:, :most])
        asked = [row for row, text in enumerate(questions) if 0 < len(text) < most and not self._special & set(text)]
        if not asked:
            return []
        contexts = [[*before, *questions[row], *between] for row in asked]
        answers = sampled(contexts, end, draws[asked, most:])
        return [
            [*context, *answer, *([end] if len(answer) < room - most else [])]
            for context, answer in zip(contexts, answers, strict=True)
            if answer and not self._special & set(answer)
        ]

    def feed_ids(self, chats: Iterable[Sequence[int]]) -> list[Block]:
        """Return the blocks that these chats complete."""
        before, between, _ = self._frame
        rows = []
        for ids in chats:
            start = ids.index(between[0], len(before)) + len(between)
            rows.append(([*ids], [*[IGNORED] * start, *ids[start:]]))
            self.count.documents += 1
            self.count.tokens += len(ids)
        return self.feed_examples(rows)
