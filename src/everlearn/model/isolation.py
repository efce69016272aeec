"""Whether a causal model keeps documents apart that share a row: positions that restart have to be enough."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from everlearn.model.architectures import registered
from everlearn.model.modes import evaluating
from everlearn.model.modules import takes, transformers_model

_ISOLATES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_ROWS = [[10, 11, 12, 13, 14, 15], [20, 21, 22, 13, 14, 15]]
_POSITIONS = [0, 1, 2, 0, 1, 2]


def why_not_isolated(model: nn.Module) -> str:
    """Return why a causal model reads from one document into the next of a row; "" if it need not.

    Attention keeps documents apart by their positions, if the model makes its mask from them. Registered architectures
    do. Of others it is measured by one forward pass; a model on the meta device has no numbers and is believed.
    """
    inner: Any = transformers_model(model)[1]
    if registered(str(inner.config.model_type)) is not None:
        return ""
    if any(isinstance(module, nn.Conv1d) for module in inner.get_decoder().modules()):
        return "its convolutions and state-space or linear-attention layers carry their state on through a row"
    if not takes(inner, "position_ids"):
        return "it takes no position ids"
    if next(inner.parameters()).device.type != "meta" and not _isolates(inner):
        return "its attention mask is not made from the positions that it is given"
    return ""


def _isolates(model: nn.Module) -> bool:
    """Return whether a document does not depend on the one before it in its row, measured once."""
    if model not in _ISOLATES:
        device = next(model.parameters()).device
        ids, positions = torch.tensor(_ROWS, device=device), torch.tensor([_POSITIONS] * 2, device=device)
        with torch.no_grad(), evaluating(model):
            logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        one, other = logits[:, _POSITIONS.index(0, 1) :].float()
        _ISOLATES[model] = float((one - other).abs().max()) <= 1e-3 * float(one.abs().max())
    return _ISOLATES[model]
