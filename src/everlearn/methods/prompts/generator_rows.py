"""Inputs and targets that train a model to generate examples of its domains (LAMOL, arXiv 1909.03329)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everlearn.data.blocks import Block
from everlearn.data.tokenize import Encoder


class WrittenPairs:
    """Generated examples of an encoder-decoder: prompted with a domain, it writes prompt, separator and answer.

    The question has "{domain}" in place of the name of the domain.
    """

    def __init__(self, encoder: Encoder, question: str, separator: str) -> None:
        self._encoder, self._question = encoder, question
        self._separator: list[int] = encoder([separator])[0]

    def prompt(self, domain: str) -> list[int]:
        """Return the prompt for an example of a domain."""
        return self._around(self._encoder([self._question.replace("{domain}", domain)])[0])

    def lesson(self, block: Block, domain: str) -> Block:
        """Return the example that trains generation: the question as input; prompt, separator and answer as target."""
        prompt, answer = (self._bare(block[key].tolist()) for key in ("input_ids", "labels"))
        labels = self._around([*prompt, *self._separator, *answer])
        return {"input_ids": np.array(self.prompt(domain), np.int32), "labels": np.array(labels, np.int32)}

    def block(self, tokens: Sequence[int]) -> Block | None:
        """Convert generated tokens (without the end) to an example; None if prompt, separator or answer is missing."""
        tokens = self._bare(list(tokens))
        size = len(self._separator)
        places = (at for at in range(1, len(tokens) - size) if tokens[at : at + size] == self._separator)
        at = next(places, None)
        if at is None:
            return None
        ids, labels = self._around(tokens[:at]), self._around(tokens[at + size :])
        return {"input_ids": np.array(ids, np.int32), "labels": np.array(labels, np.int32)}

    def _around(self, ids: Sequence[int]) -> list[int]:
        return [*self._encoder.prefix, *ids, *self._encoder.suffix]

    def _bare(self, ids: list[int]) -> list[int]:
        """Remove leading and trailing special tokens."""
        prefix, suffix = self._encoder.prefix, self._encoder.suffix
        ids = ids[len(prefix) :] if prefix and ids[: len(prefix)] == prefix else ids
        return ids[: -len(suffix)] if suffix and ids[-len(suffix) :] == suffix else ids


class WrittenTexts:
    """Generated texts of a decoder that learns plain text, which needs no question and no additional training."""

    def __init__(self, encoder: Encoder) -> None:
        self._start: list[int] = encoder.prefix or [encoder.pad if encoder.end is None else encoder.end]

    def prompt(self, domain: str) -> list[int]:
        """Return the beginning of a text, whatever the domain."""
        return self._start

    def lesson(self, block: Block, domain: str) -> None:
        """Return None: a decoder needs no separate generation loss, because generating text is its task."""

    def block(self, tokens: Sequence[int]) -> Block:
        """Convert generated tokens to a row with one document."""
        ids = np.array([*self._start, *tokens], np.int32)
        return {"input_ids": ids, "segments": np.zeros_like(ids)}
