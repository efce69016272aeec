"""Evaluation or training mode for a while, and the rates of dropout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import nn


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode (no dropout) inside; afterwards every module has the mode that it had, frozen parts included."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        _restore(modes)


@contextlib.contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Training mode (dropout) for every module inside; afterwards each has the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        _restore(modes)


def _restore(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, mode in modes:
        module.training = mode


def dropout_rates(model: nn.Module) -> Iterator[tuple[nn.Module, str, float]]:
    """Every rate above 0 as (module, its attribute, rate): of dropout modules, and numbers that a function reads."""
    for module in model.modules():
        is_dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        for name, value in vars(module).items():
            if isinstance(value, float) and value > 0 and ("drop" in name or (is_dropout and name == "p")):
                yield module, name, value


def without_dropout(model: nn.Module) -> Callable[[], None]:
    """Set every rate to 0; what is returned puts them back."""
    rates = list(dropout_rates(model))
    for module, name, _ in rates:
        setattr(module, name, 0.0)

    def restore() -> None:
        for module, name, rate in rates:
            setattr(module, name, rate)

    return restore
