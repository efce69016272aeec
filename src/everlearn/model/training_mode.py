"""Context managers for evaluation and training mode, for the forward of a model's class, and for dropout rates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from transformers import PreTrainedModel


@contextlib.contextmanager
def training(model: nn.Module, mode: bool = True) -> Iterator[None]:
    """Set training mode (with dropout) for every module in the block; restore the mode of each afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(mode)
    try:
        yield
    finally:
        for module, before in modes:
            module.training = before


def evaluating(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Set evaluation mode (no dropout) for every module in the block; restore the mode of each afterwards."""
    return training(model, False)


@contextlib.contextmanager
def as_its_class_computes(model: nn.Module) -> Iterator[None]:
    """Remove a forward that was assigned to the model instance (mixed precision, TRL's fused head) for the block.

    Measurements use the precision of the weights; and a copy of the model may hold a forward that is bound to the
    original. A forward that moves weights between devices stays.
    """
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in model.modules():
        own = vars(module)
        if (module is model or isinstance(module, PreTrainedModel)) and "_hf_hook" not in own:
            kept.append((own, {name: own.pop(name) for name in ("forward", "_original_forward") if name in own}))
    try:
        yield
    finally:
        for own, forwards in kept:
            own.update(forwards)


def dropout_rates(model: nn.Module) -> Iterator[tuple[nn.Module, str, float]]:
    """Yield every dropout rate above 0 as (module, attribute, rate), of dropout modules and of functional dropout."""
    for module in model.modules():
        is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        for name, value in vars(module).items():
            if isinstance(value, float) and value > 0 and ("drop" in name or (is_dropout and name == "p")):
                yield module, name, value


def without_dropout(model: nn.Module) -> Callable[[], None]:
    """Set every dropout rate to 0, and return a function that restores them."""
    rates = list(dropout_rates(model))
    for module, name, _ in rates:
        setattr(module, name, 0.0)

    def restore() -> None:
        for module, name, rate in rates:
            setattr(module, name, rate)

    return restore
