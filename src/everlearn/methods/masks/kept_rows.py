"""Compute weight gradients for the kept rows of a linear layer only; those that a row mask removes are skipped.

With y = x Wᵀ the gradient is dW = dYᵀ X, [d_out, d_in], a third of the arithmetic of a training step. If the mask is
known at the end of the forward pass, only dW[kept] = dY[:, kept]ᵀ X is computed: the same numbers for a share 1 − T of
the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

Plan = Mapping[str, Tensor]
"""Path of a layer → indices of the rows to keep; layers that are not listed keep all."""


class KeptRows:
    """Replaces the weight gradients of some linear layers by those of the rows that the plan of a pass keeps.

    The forward of the layer runs on its detached weight, so autograd computes the gradients of input and bias and not
    that of the weight. Parameters, ``state_dict`` and optimizer see no change.

    Args:
        model: the model; the layers must be plain (`nn.Linear` or `Conv1D`).
        modules: paths of the layers.
        plan: returns the plan of the current pass, which may be filled until its backward pass. Layers that gradient
            checkpointing recomputes in the backward pass use the original plan.
    """

    def __init__(self, model: nn.Module, modules: Iterable[str], plan: Callable[[], Plan]) -> None:
        self._hooks = ExitStack()
        for path in modules:
            module = model.get_submodule(path)
            self._hooks.enter_context(module.register_forward_pre_hook(self._detach_weight))
            # The first of all hooks, so that others see the ordinary output.
            self._hooks.enter_context(module.register_forward_hook(self._attach_rows(path, plan), prepend=True))

    def close(self) -> None:
        """Restore the ordinary gradients of the layers."""
        self._hooks.close()

    @staticmethod
    def _detach_weight(module: nn.Module, _: Any) -> None:
        if module.training and torch.is_grad_enabled():
            vars(module)["weight"] = module.get_parameter("weight").detach()

    @staticmethod
    def _attach_rows(path: str, plan: Callable[[], Plan]) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        def attach(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if vars(module).pop("weight", None) is None:
                return None
            weight = module.get_parameter("weight")
            result: Tensor = _RowGradient.apply(
                output, args[0].detach(), weight, path, plan(), isinstance(module, Conv1D)
            )
            return result

        return attach


class _RowGradient(torch.autograd.Function):
    """The identity of y; its backward pass also computes the gradient of `weight`, dY[:, kept]ᵀ X in its kept rows."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, inputs: Tensor, weight: Tensor, path: str, plan: Plan, transposed: bool
    ) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.path, ctx.plan = path, plan
        ctx.shape, ctx.dtype, ctx.transposed = weight.shape, weight.dtype, transposed
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        kept, dim = ctx.plan.get(ctx.path), int(ctx.transposed)
        dy, x = gradient.flatten(0, -2), inputs.flatten(0, -2).to(gradient.dtype)
        dy = dy if kept is None else dy.index_select(1, kept)
        rows = (x.T @ dy if ctx.transposed else dy.T @ x).to(ctx.dtype)
        dw = rows if kept is None else rows.new_zeros(ctx.shape).index_copy_(dim, kept, rows)
        return gradient, None, dw, None, None, None
