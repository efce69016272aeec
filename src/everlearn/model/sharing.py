"""Copies of a model that share its weights."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection

from torch import nn


def sharing(model: nn.Module, own: Collection[str] = ()) -> nn.Module:
    """Return a copy of a model whose modules are new and whose parameters and buffers are the same tensors.

    Args:
        model: without a distributed wrapper.
        own: names of parameters that the copy has for itself.
    """
    shared = itertools.chain(model.named_parameters(), model.named_buffers())
    return copy.deepcopy(model, {id(value): value for name, value in shared if name not in own})
