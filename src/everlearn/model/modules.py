"""Find modules of a model by their paths, inside wrappers."""

from __future__ import annotations

import inspect

from torch import nn
from transformers import PreTrainedModel

from everlearn.errors import ModelError


def transformers_model(model: nn.Module) -> tuple[str, PreTrainedModel]:
    """Return the path and the outermost transformers model inside PEFT, DDP or torch.compile.

    Raises:
        ModelError: there is none.
    """
    for path, module in model.named_modules():
        if isinstance(module, PreTrainedModel):
            return path, module
    raise ModelError(f"'{type(model).__name__}' is not a transformers model, so its heads and neurons cannot be found.")


def takes(model: nn.Module, argument: str) -> bool:
    """Return whether the forward pass of a model has an argument of this name."""
    return argument in inspect.signature(type(transformers_model(model)[1]).forward).parameters


def find(model: nn.Module, path: str) -> nn.Module | None:
    """Return the module at a path, or None."""
    for part in path.split(".") if path else ():
        child = getattr(model, part, None)
        if not isinstance(child, nn.Module):
            return None
        model = child
    return model


def join(path: str, name: str) -> str:
    """Join two module paths with a dot; either may be empty."""
    return f"{path}.{name}" if path and name else path or name
