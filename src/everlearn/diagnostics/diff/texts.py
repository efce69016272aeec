"""Compare two models on one text: their difference, with the interval of a paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from everlearn.diagnostics.diff.changes import BITS, End, ends_of
from everlearn.diagnostics.diff.passages import TextPassage
from everlearn.diagnostics.diff.scoring import TokenLosses
from everlearn.evaluation.estimate import Estimate
from everlearn.evaluation.quantities import estimate
from everlearn.evaluation.statistics import bootstrap_ratio

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TextDifference:
    """The difference of two models on one text, in bits per byte; below zero is better.

    Attributes:
        name: name of the text.
        documents: number of documents with scored tokens.
        passages: number of scored passages.
        tokens: number of scored tokens, by the earlier model's tokenizer.
        bytes: number of scored bytes; for a masked model, those of its masked tokens.
        unit: unit of the bootstrap: documents or passages.
        before: bits per byte of the earlier model.
        after: bits per byte of the later model.
        difference: after − before, paired.
        by_token: whether both models read the same tokens.
        lost: the largest losses.
        gained: the largest gains.
    """

    name: str
    documents: int
    passages: int
    tokens: int
    bytes: int
    unit: str
    before: Estimate
    after: Estimate
    difference: Estimate
    by_token: bool
    lost: End
    gained: End


def compare(
    name: str,
    passages: Sequence[TextPassage],
    before: TokenLosses,
    after: TokenLosses,
    tokenizer: PreTrainedTokenizerBase,
) -> TextDifference:
    """Compare the losses of two models on the same passages.

    Args:
        name: name of the text.
        passages: passages of the text.
        before: losses of the earlier model.
        after: losses of the later model.
        tokenizer: the earlier model's tokenizer.
    """
    nats, items = before.sums()
    # All bytes of a passage; for a masked model the share of its masked tokens, which is the same for both models.
    scored = np.array([passage.bytes for passage in passages]) * items / [max(1, len(own)) for own in before.ids]
    kept = items > 0
    documents = np.array([passage.document for passage in passages])[kept]
    count = len(np.unique(documents))
    bits, size = np.stack([nats, after.sums()[0]])[:, kept] / BITS, scored[kept]
    levels = bits.sum(1) / size.sum()
    draws = bootstrap_ratio(bits, np.broadcast_to(size, bits.shape), groups=documents, seed=("diff", name))
    lost, gained = ends_of(passages, before, after, scored, tokenizer)
    return TextDifference(
        name,
        documents=count,
        passages=int(kept.sum()),
        tokens=int(items.sum()),
        bytes=round(float(scored.sum())),
        unit="documents" if count > 1 else "passages",
        before=estimate(levels[0], draws[:, 0]),
        after=estimate(levels[1], draws[:, 1]),
        difference=estimate(levels[1] - levels[0], draws[:, 1] - draws[:, 0]),
        by_token=before.same_tokens(after),
        lost=lost,
        gained=gained,
    )
