"""What a model is taught, and asked, so that it writes examples of its domains itself (LAMOL, arXiv 1909.03329)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from everlearn.data.blocks import Block
from everlearn.data.tokenize import Encoder


class WrittenPairs:
    """Of an encoder-decoder: asked for a domain it answers with a prompt, a separator and the prompt's answer.

    Args:
        encoder: of the model.
        question: what is asked, with "{domain}" where the domain's name belongs.
        separator: between prompt and answer.
    """

    def __init__(self, encoder: Encoder, question: str, separator: str) -> None:
        self._encoder, self._question = encoder, question
        self._separator: list[int] = encoder([separator])[0]

    def asked(self, domain: str) -> list[int]:
        """What the encoder reads."""
        return self._around(self._encoder([self._question.replace("{domain}", domain)])[0])

    def lesson(self, block: Block, domain: str) -> Block:
        """An example of a domain as one of writing it: ask → prompt, separator, answer."""
        prompt, answer = (self._bare(block[key].tolist()) for key in ("input_ids", "labels"))
        labels = self._around([*prompt, *self._separator, *answer])
        return {"input_ids": np.array(self.asked(domain), np.int32), "labels": np.array(labels, np.int32)}

    def block(self, tokens: Sequence[int]) -> Block | None:
        """What was written (without the end) as an example; None where prompt, separator or answer is missing."""
        tokens = self._bare(list(tokens))
        size = len(self._separator)
        found = (at for at in range(1, len(tokens) - size) if tokens[at : at + size] == self._separator)
        at = next(found, None)
        if at is None:
            return None
        ids, labels = self._around(tokens[:at]), self._around(tokens[at + size :])
        return {"input_ids": np.array(ids, np.int32), "labels": np.array(labels, np.int32)}

    def _around(self, ids: Sequence[int]) -> list[int]:
        return [*self._encoder.prefix, *ids, *self._encoder.suffix]

    def _bare(self, ids: list[int]) -> list[int]:
        """Without the special tokens around it, as far as they are there."""
        prefix, suffix = self._encoder.prefix, self._encoder.suffix
        ids = ids[len(prefix) :] if prefix and ids[: len(prefix)] == prefix else ids
        return ids[: -len(suffix)] if suffix and ids[-len(suffix) :] == suffix else ids


class WrittenTexts:
    """Of a decoder that learns text as it is: it writes without being asked, and needs no lesson for it.

    Args:
        encoder: of the model.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._start: list[int] = encoder.prefix or [encoder.pad if encoder.end is None else encoder.end]

    def asked(self, domain: str) -> list[int]:
        """The beginning of a text, whatever the domain."""
        return self._start

    def lesson(self, block: Block, domain: str) -> None:
        """None: the task itself is to write text."""

    def block(self, tokens: Sequence[int]) -> Block:
        """What was written, as a row of one document."""
        ids = np.array([*self._start, *tokens], np.int32)
        return {"input_ids": ids, "segments": np.zeros_like(ids)}
