"""Rearrange documents into prefix, suffix and middle, so that a decoder learns to fill in (arXiv 2207.14255)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from everlearn.data.corpus import text_key
from everlearn.errors import ModelError
from everlearn.seeding import seed_for

if TYPE_CHECKING:
    from everlearn.data.tokenize import Encoder

TOKENS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
"""Names of the tokens before the prefix, the suffix and the middle, in various tokenizers."""


class FillInMiddle:
    """Write a share of the documents as <prefix> … <suffix> … <middle> …, each cut at two random places.

    The choice of documents and of the places depends on their text alone, so a resumed stream repeats it.

    Args:
        encoder: encoder of the model.
        share: share of the documents.

    Raises:
        ModelError: the tokenizer has no tokens for it.
    """

    def __init__(self, encoder: Encoder, share: float) -> None:
        self.encoder, self.share = encoder, share
        known = encoder.tokenizer.get_vocab()
        named = next((each for each in TOKENS if all(token in known for token in each)), None)
        if named is None:
            raise ModelError(
                "`fill_in_middle` needs a tokenizer with tokens for prefix, suffix and middle, such as "
                f"{', '.join(TOKENS[0])}; '{encoder.tokenizer.name_or_path}' has none. Remove it, or use the tokenizer "
                "of a model for code."
            )
        self.tokens = [known[token] for token in named]

    def __call__(self, texts: Sequence[str], ids: Sequence[list[int]]) -> list[list[int]]:
        """Return the ids of each text, rearranged or as they are given."""
        written = []
        for text, own in zip(texts, ids, strict=True):
            random = np.random.Generator(np.random.PCG64(seed_for("fill in middle", text_key(text))))
            if random.random() < self.share:
                first, last = sorted(random.integers(0, len(text) + 1, 2).tolist())
                parts = self.encoder([text[:first], text[last:], text[first:last]])
                own = [id_ for token, part in zip(self.tokens, parts, strict=True) for id_ in (token, *part)]
            written.append(own)
        return written
