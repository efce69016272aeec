"""The documents of packed rows, and associative scans within them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

PADDING = -1
"""Document number of padding."""


def documents(given: Mapping[str, Any]) -> Tensor:
    """Return the document number of each token of a pass, [B, S]; a document ends where positions do not count on."""
    text: Tensor = given["inputs_embeds"] if given.get("input_ids") is None else given["input_ids"]
    document = torch.zeros(text.shape[:2], dtype=torch.long, device=text.device)
    positions, mask = given.get("position_ids"), given.get("attention_mask")
    if positions is not None:
        document[:, 1:] = (positions[:, 1:] != positions[:, :-1] + 1).cumsum(1)
    if mask is not None and mask.dim() == 2:
        document = document.masked_fill(mask == 0, PADDING)
    return document


def so_far(values: Tensor, document: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Apply an associative operation to each token and all tokens before it in its document, in log2 S steps.

    Args:
        values: [B, S, E].
        document: document number of each token, [B, S], ascending.
        combine: the operation on two tensors.

    Returns:
        [B, S, E].
    """
    reach = 1
    while reach < values.shape[1]:
        same = (document[:, reach:] == document[:, :-reach])[:, :, None]
        longer = torch.where(same, combine(values[:, reach:], values[:, :-reach]), values[:, reach:])
        values = torch.cat([values[:, :reach], longer], 1)
        reach *= 2
    return values
