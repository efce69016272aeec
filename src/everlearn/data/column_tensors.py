"""Convert columns of blocks to tensors, as they are saved, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everlearn.data.blocks import Column, Ragged


def to_tensors(columns: Mapping[str, Column]) -> dict[str, Tensor]:
    """Return each column as a tensor of its name; a ragged one as ``<name>.values`` and ``<name>.offsets``."""
    tensors: dict[str, Tensor] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            tensors[f"{name}.values"] = torch.from_numpy(column.values.copy())
            tensors[f"{name}.offsets"] = torch.from_numpy(column.offsets.copy())
        else:
            tensors[name] = torch.from_numpy(column.copy())
    return tensors


def from_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Column]:
    """Return the columns that :func:`to_tensors` converted."""
    columns: dict[str, Column] = {}
    for key, tensor in tensors.items():
        name, _, part = key.rpartition(".")
        if part == "values":
            columns[name] = Ragged(tensor.numpy(), tensors[f"{name}.offsets"].numpy())
        elif part != "offsets":
            columns[key] = tensor.numpy()
    return columns
