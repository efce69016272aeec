"""The gradient of the effective weight of a layer with adapters, which autograd does not compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.errors import MethodError
from everlearn.methods.engine.processes import processes
from everlearn.model.adapted import Weight


class LayerGradients:
    """Accumulate Σ δ ⊗ x over the passes of a step, with x the inputs of a layer and δ the gradients of its outputs.

    That is ∂L/∂W of the effective weight W + s B A; autograd computes only those of B and A, s δᵀ x Aᵀ and s Bᵀ δᵀ x.
    Dropout on the input of an adapter is left out.
    """

    def __init__(self) -> None:
        self._weights: dict[str, Weight] = {}
        self._sums: dict[str, Tensor] = {}
        self._hooks = ExitStack()

    def watch(self, weights: Mapping[str, Weight], when: Callable[[], bool]) -> None:
        """Register hooks on the layers with adapters; they accumulate gradients in passes for which `when()` is true.

        Raises:
            MethodError: a layer is not linear.
        """
        self.stop()
        for name, weight in weights.items():
            layer: Any = weight.layer
            if not weight.adapted:
                continue
            base = layer.get_base_layer()
            if not isinstance(base, nn.Linear | Conv1D):
                raise MethodError(
                    f"The gradient of '{name}' with its adapter cannot be computed during training, because its layer "
                    "is an embedding. Use `mas` or `ewc`, which measure after a domain."
                )
            vector, transposed = weight.parameter.dim() == 1, isinstance(base, Conv1D)
            self._hooks.enter_context(layer.register_forward_hook(self._hook(name, vector, transposed, when)))

    def _hook(self, name: str, vector: bool, transposed: bool, when: Callable[[], bool]) -> Callable[..., None]:
        def after(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if not (torch.is_grad_enabled() and output.requires_grad and when()):
                return
            x = args[0].detach().flatten(0, -2)

            def add(gradient: Tensor) -> None:
                delta = gradient.detach().flatten(0, -2)
                left, right = (x, delta) if transposed else (delta, x)
                new = delta.float().sum(0) if vector else left.T.float() @ right.float()
                self._sums[name] = self._sums[name].add_(new) if name in self._sums else new

            output.register_hook(add)

        return after

    def take(self) -> dict[str, Tensor]:
        """Return the gradients since the last call, averaged over the processes as DDP averages those of parameters."""
        gradients, self._sums = self._sums, {}
        if processes() > 1:
            for name in sorted(gradients):
                torch.distributed.all_reduce(gradients[name].div_(processes()))
        return gradients

    def stop(self) -> None:
        """Remove the hooks."""
        self._hooks.close()
        self._sums = {}
