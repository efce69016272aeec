"""Which tokens of a batch are text and not padding, for what is averaged over a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from everlearn.data.blocks import Block

CONTENT = "content"
"""Key of a batch of packed prompts and answers: which tokens of a row are text and not filling, [B, S]."""


def content_of(blocks: Sequence[Block], ignored: int) -> Tensor:
    """Return which tokens of packed prompts and answers are text, [B, S]; a segment without labels is filling."""
    masks = []
    for block in blocks:
        segments, labels = block["segments"], block.get("labels", block["input_ids"])
        masks.append(np.isin(segments, segments[labels != ignored]))
    return torch.from_numpy(np.stack(masks))


def counted(batch: Mapping[str, Tensor]) -> Tensor | None:
    """Return which tokens of a batch's inputs are text and no padding, [B, S]; None: all of them.

    Masks of isolated documents, [B, 1, S, S], hide no token from itself and say nothing about padding.
    """
    if CONTENT in batch:
        return batch[CONTENT]
    mask = batch.get("attention_mask")
    return mask if mask is not None and mask.dim() == 2 else None


def mean_state(hidden: Tensor, read: Tensor | None) -> Tensor:
    """Return the mean hidden state of each row, [B, H] float32, over the tokens that are text (None: all)."""
    if read is None:
        return hidden.float().mean(1)
    return (hidden.float() * read[:, :, None]).sum(1) / read.sum(1, keepdim=True).clamp(min=1)
