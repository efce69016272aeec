"""Distributed training: the rank of this process, and rows of all processes."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

GatherGrad = Literal["full", "local"]


def loss_scale(accelerator: Any) -> float:
    """Return the factor by which an accelerator multiplies losses before the backward pass: 1, except in fp16."""
    return 1.0 if accelerator.scaler is None else float(accelerator.scaler.get_scale())


def rank() -> int:
    """Return the rank of this process; 0 if there is only one."""
    return torch.distributed.get_rank() if _distributed() else 0


def processes() -> int:
    """Return the number of processes."""
    return torch.distributed.get_world_size() if _distributed() else 1


def wait_for_all() -> None:
    """Wait until all processes have reached this point."""
    if _distributed():
        torch.distributed.barrier()


def everywhere(rows: Tensor, gather_grad: GatherGrad = "full") -> Tensor:
    """Gather rows of all processes in rank order, [W · n, …] from [n, …]; all must call it with equally many rows.

    Args:
        rows: rows of this process.
        gather_grad: the gradient of the rows of a process is summed over all processes (`full`), or taken from its own
            copy only (`local`).
    """
    if processes() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows, gather_grad)
    return gathered


def _distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class _Gather(torch.autograd.Function):
    """Gather rows of all processes in rank order.

    The backward pass gives the rows of this process the gradients of all processes, summed, or only its own
    (``local``), like ``torch.distributed.all_gather`` when a process puts its own rows back among the gathered ones.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gather_grad: GatherGrad) -> Tensor:
        ctx.gather_grad = gather_grad
        rows = rows.contiguous()
        gathered = [torch.empty_like(rows) for _ in range(processes())]
        torch.distributed.all_gather(gathered, rows)
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # A copy, since it is summed in place, and contiguous, as NCCL requires.
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        if ctx.gather_grad == "full":
            torch.distributed.all_reduce(gradient)
        return gradient.chunk(processes())[rank()], None
