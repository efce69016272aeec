"""Weight gradients for the kept rows of a linear layer only: what a row mask removes is never computed.

With y = x Wᵀ the gradient is dW = dYᵀ X, [d_out, d_in]. A mask that is known when the layer's forward pass ends leaves
dW[kept] = dY[:, kept]ᵀ X to compute: the same numbers, and (1 − T) of a third of the arithmetic of a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

Choose = Callable[[str, Tensor], Tensor | None]
"""From a layer's path and its outputs to the indices of the rows to keep; None keeps all."""


class KeptRows:
    """Replaces the weight gradient of some linear layers by that of the rows that `choose` keeps in each pass.

    The layer's own forward pass runs on its detached weight, so autograd makes the gradients of input and bias and not
    the weight's. Parameters, ``state_dict`` and optimizer see no change.

    Args:
        model: the model; its layers must be plain ones (`nn.Linear` or `Conv1D`).
        modules: paths of the layers.
        choose: is called at the end of each layer's forward pass, and again where gradient checkpointing computes it
            again; it must then choose the same rows.
    """

    def __init__(self, model: nn.Module, modules: Iterable[str], choose: Choose) -> None:
        self._handles: list[Any] = []
        for path in modules:
            module = model.get_submodule(path)
            self._handles.append(module.register_forward_pre_hook(self._detach_weight))
            # First of all hooks: others see the output as they would without us.
            self._handles.append(module.register_forward_hook(self._attach_rows(path, choose), prepend=True))

    def close(self) -> None:
        """Give the layers their own gradients back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @staticmethod
    def _detach_weight(module: nn.Module, _: Any) -> None:
        if module.training and torch.is_grad_enabled():
            vars(module)["weight"] = module.get_parameter("weight").detach()

    @staticmethod
    def _attach_rows(path: str, choose: Choose) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        def attach(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if vars(module).pop("weight", None) is None:
                return None
            weight = module.get_parameter("weight")
            transposed = isinstance(module, Conv1D)
            result: Tensor = _RowGradient.apply(output, args[0].detach(), weight, choose(path, output), transposed)
            return result

        return attach


class _RowGradient(torch.autograd.Function):
    """The identity of y; backward also gives `weight` the gradient dY[:, kept]ᵀ X in its kept rows."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, inputs: Tensor, weight: Tensor, kept: Tensor | None, transposed: bool) -> Any:
        ctx.save_for_backward(inputs, *(() if kept is None else (kept,)))
        ctx.shape, ctx.dtype, ctx.transposed = weight.shape, weight.dtype, transposed
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs, *kept = ctx.saved_tensors
        outwards, inwards = gradient.flatten(0, -2), inputs.flatten(0, -2).to(gradient.dtype)
        if not kept:
            whole = inwards.T @ outwards if ctx.transposed else outwards.T @ inwards
            return gradient, None, whole.to(ctx.dtype), None, None
        few = outwards.index_select(1, kept[0])
        whole = few.new_zeros(ctx.shape, dtype=ctx.dtype)
        if ctx.transposed:
            whole.index_copy_(1, kept[0], (inwards.T @ few).to(ctx.dtype))
        else:
            whole.index_copy_(0, kept[0], (few.T @ inwards).to(ctx.dtype))
        return gradient, None, whole, None, None
