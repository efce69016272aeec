"""Compare two models on one text: their difference, with the interval of a paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from everlearn.diagnostics.diff.changes import End, ends_of
from everlearn.diagnostics.diff.passages import TextPassage
from everlearn.diagnostics.diff.scoring import TokenLosses
from everlearn.evaluation import METRICS, Estimate, resample, text_cell
from everlearn.evaluation.held_out_rows import DOCUMENT

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
    properties = {"bytes": scored[kept], DOCUMENT: documents}
    cells = [text_cell(own[kept], items[kept], 1.0, given=properties) for own in (nats, after.sums()[0])]
    scores = resample(cells, [METRICS["bits_per_byte"]], seed=("diff", name))["bits_per_byte"]
    lost, gained = ends_of(passages, before, after, scored, tokenizer)
    return TextDifference(
        name,
        documents=count,
        passages=int(kept.sum()),
        tokens=int(items.sum()),
        bytes=round(float(scored.sum())),
        unit="documents" if count > 1 else "passages",
        before=scores.of(0),
        after=scores.of(1),
        difference=scores.change(),
        by_token=before.same_tokens(after),
        lost=lost,
        gained=gained,
    )
