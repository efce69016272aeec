"""The documents of packed rows, scans within them, and whether restarting positions isolate them in a causal model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from everlearn.model.architectures import registered
from everlearn.model.finding import takes, text_tower, transformers_model
from everlearn.model.training_mode import evaluating

PADDING = -1
"""Document number of padding."""


def documents(inputs: Mapping[str, Any]) -> Tensor:
    """Return the document number of each token of a pass, [B, S]; a document ends where positions stop counting up."""
    text: Tensor = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    document = torch.zeros(text.shape[:2], dtype=torch.long, device=text.device)
    positions, mask = inputs.get("position_ids"), inputs.get("attention_mask")
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


_ISOLATES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_ROWS = [[10, 11, 12, 13, 14, 15], [20, 21, 22, 13, 14, 15]]
_POSITIONS = [0, 1, 2, 0, 1, 2]


def why_not_isolated(model: nn.Module) -> str:
    """Return why a causal model cannot isolate the documents of a row; "" if it can.

    Documents are isolated if the model derives its attention mask from the position ids. Registered architectures do;
    others are tested by one forward pass, except on the meta device, where they are assumed to.
    """
    inner: Any = transformers_model(model)[1]
    if registered(str(inner.config.model_type)) is not None:
        return ""
    if any(isinstance(module, nn.Conv1d) for module in text_tower(inner).modules()):
        return "its convolutions and state-space or linear-attention layers carry their state on through a row"
    if getattr(inner.config, "compress_rates", None):
        return "it compresses neighbouring tokens into one, whatever their document"
    if not takes(inner, "position_ids"):
        return "it takes no position ids"
    if next(inner.parameters()).device.type != "meta" and not _isolates(inner):
        return "its attention mask is not made from the positions that it is given"
    return ""


def masks_isolate(model: nn.Module) -> bool:
    """Return whether a mask of which tokens see which keeps the documents of an encoder's row apart.

    Registered architectures with the kernel for it do; others are tested by one forward pass, except on the meta
    device, where they are assumed to.
    """
    inner: Any = transformers_model(model)[1]
    if inner.config._attn_implementation != "sdpa":
        return False
    device = next(inner.parameters()).device
    if registered(str(inner.config.model_type)) is not None or device.type == "meta":
        return True
    ids, document = torch.tensor(_ROWS, device=device), torch.tensor(_POSITIONS, device=device).eq(0).cumsum(0)
    seen = (document[:, None] == document).expand(len(ids), 1, -1, -1)
    with torch.no_grad(), evaluating(model), contextlib.suppress(RuntimeError, ValueError):
        return _agree(model(input_ids=ids, attention_mask=seen).logits)
    return False  # it expects a mask of tokens (ESM)


def _isolates(model: nn.Module) -> bool:
    """Return whether a document does not depend on the one before it in its row, measured once."""
    if model not in _ISOLATES:
        device = next(model.parameters()).device
        ids, positions = torch.tensor(_ROWS, device=device), torch.tensor([_POSITIONS] * 2, device=device)
        with torch.no_grad(), evaluating(model):
            _ISOLATES[model] = _agree(model(input_ids=ids, position_ids=positions, use_cache=False).logits)
    return _ISOLATES[model]


def _agree(logits: Tensor) -> bool:
    """Return whether the second documents of the two rows have the same logits."""
    one, other = logits[:, _POSITIONS.index(0, 1) :].float()
    return float((one - other).abs().max()) <= 1e-3 * float(one.abs().max())
