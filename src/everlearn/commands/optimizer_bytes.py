"""Count the bytes of an optimizer's state from the shapes of the parameters alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from transformers import Trainer, TrainingArguments

QUANTISED_FROM, QUANTISED_BLOCK = 4096, 256
"""Of bitsandbytes: smallest tensor whose moments have 8 bits, and the numbers that share a scale (float32)."""
ADAM = 8
"""Bytes per number of Adam's two moments in float32."""


def optimizer_bytes(args: TrainingArguments, shapes: Sequence[torch.Size]) -> tuple[int, bool]:
    """Return the bytes of the state after a step, and whether they are exact.

    Optimizers of torch make a step on fake tensors, which have only shapes. Adafactor and the 8-bit optimizers of
    bitsandbytes, whose steps need numbers, are counted by their rules, and all others like AdamW.

    Args:
        args: the arguments that name the optimizer.
        shapes: the shapes of the parameters, or of a device's shards of them.
    """
    name = str(getattr(args.optim, "value", args.optim))
    if "8bit" in name:
        return sum(map(_of_eight_bits, shapes)), True
    if name == "adafactor":
        return sum(map(_factored, shapes)) + 4 * len(shapes), True  # and the size of each parameter
    try:
        return _of_a_step(args, shapes), True
    except Exception:  # a package that is not installed here, or a step that reads numbers
        return ADAM * sum(shape.numel() for shape in shapes), name.startswith("adamw")


def _of_a_step(args: TrainingArguments, shapes: Sequence[torch.Size]) -> int:
    cls, options = Trainer.get_optimizer_cls_and_kwargs(args)
    with FakeTensorMode():
        parameters = [nn.Parameter(torch.empty(shape, device="cpu")) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer: torch.optim.Optimizer = cls(parameters, **options)
        optimizer.step()
        state: Any = list(optimizer.state.values())
        return sum(value.nbytes for value in tree_leaves(state) if isinstance(value, torch.Tensor))


def _of_eight_bits(shape: torch.Size) -> int:
    numbers = shape.numel()
    if numbers < QUANTISED_FROM:
        return ADAM * numbers
    return 2 * numbers + 2 * 4 * math.ceil(numbers / QUANTISED_BLOCK)


def _factored(shape: torch.Size) -> int:
    """Return the bytes of Adafactor's row and column means, or of its second moment of a vector."""
    if len(shape) < 2:
        return 4 * shape.numel()
    return 4 * (shape[:-1].numel() + shape[:-2].numel() * shape[-1])
