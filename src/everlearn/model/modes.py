"""Evaluation or training mode for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
