"""The linear layers of a model to which low-rank matrices are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import nn
from transformers.pytorch_utils import Conv1D

from everlearn.errors import ModelError
from everlearn.model.anatomy import Component, anatomy

Targets = Literal["query-value", "attention", "all-linear"]
_QUERY_VALUE: frozenset[Component] = frozenset({"query", "value", "query_key_value"})
_ATTENTION: frozenset[Component] = _QUERY_VALUE | {"key", "attention_output"}
COMPONENTS: Mapping[Targets, frozenset[Component]] = {
    "query-value": _QUERY_VALUE,
    "attention": _ATTENTION,
    "all-linear": _ATTENTION | {"feed_forward_in", "feed_forward_out"},
}
"""Projections by target; a fused query-key-value projection counts as one."""


def targets_of(model: nn.Module, targets: Targets) -> list[str]:
    """Return the paths of the target layers, from the first layer to the last; `model` may be on the meta device.

    Raises:
        ModelError: there is none.
    """
    paths = [path for path, each in anatomy(model).linears.items() if each.component in COMPONENTS[targets]]
    if not paths:
        raise ModelError(
            f"'{type(model).__name__}' has no attention, whose projections `{targets}` names. Set the method's option "
            "`target_modules: all-linear`."
        )
    return paths


def sizes_of(layer: nn.Module) -> tuple[int, int]:
    """Return the number of input and output features of a linear layer."""
    rows, columns = layer.get_parameter("weight").shape
    return (rows, columns) if isinstance(layer, Conv1D) else (columns, rows)
