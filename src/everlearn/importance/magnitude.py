"""Output magnitudes of linear layers, summed while a model trains (MIGU: arXiv 2406.17245, §3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError


class OutputMagnitude:
    """Sums |output| over all positions for each output feature of some modules.

    Counted are forward passes in training mode with gradients on, padding included; evaluation, no-grad passes and
    the recomputation of gradient checkpointing (which runs inside a backward pass) are not. Sums need no division:
    whoever ranks rows by them gets the same ranks whatever the number of tokens, micro-batches or processes.

    A layer that PEFT wrapped with LoRA is measured twice: its whole output (base and adapters together) under its own
    path, and the output of each adapter's A under that module's path (`….lora_A.<adapter>`).

    Attributes:
        rows: count only the first rows of the model's next pass (a batch without the views behind it), and nothing of
            the passes after it (other methods' views and references) until it is set again; None counts all.
    """

    def __init__(self, model: nn.Module, modules: Iterable[str]) -> None:
        self.rows: int | None = None
        self._sums: dict[str, Tensor] = {}
        self._handles = [model.register_forward_hook(self._pass_ends)]
        for path in modules:
            module = model.get_submodule(path)
            adapters = getattr(module, "lora_A", {})
            measured = {path: module, **{f"{path}.lora_A.{name}": adapters[name] for name in adapters}}
            for name, part in measured.items():
                self._handles.append(part.register_forward_hook(self._counter(name)))

    def _pass_ends(self, module: nn.Module, *_: Any) -> None:
        if self.rows is not None and module.training and torch.is_grad_enabled():
            self.rows = 0

    def _counter(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def count(module: nn.Module, _: Any, output: Tensor) -> None:
            inside_backward = torch._C._current_graph_task_id() != -1
            if not module.training or not torch.is_grad_enabled() or inside_backward or self.rows == 0:
                return
            rows = output.detach()[: self.rows]
            part = rows.abs().flatten(0, -2).sum(0, dtype=torch.float32)
            self._sums[name] = self._sums[name] + part if name in self._sums else part

        return count

    def pop(self) -> dict[str, Tensor]:
        """The sums since the last call, of all processes together, [d_out] float32 by module path; starts anew.

        Every process must call this at the same point (once for each optimizer step).

        Raises:
            MethodError: nothing was counted.
        """
        sums, self._sums = self._sums, {}
        if not sums:
            raise MethodError(
                "No forward pass in training mode was seen since the last step. Gradient checkpointing with "
                "`use_reentrant: true` hides them: set `gradient_checkpointing_kwargs: {use_reentrant: false}`."
            )
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            names = sorted(sums)  # the same order in every process, whatever ran first
            flat = torch.cat([sums[name] for name in names])
            torch.distributed.all_reduce(flat)
            sums = dict(zip(names, flat.split([len(sums[name]) for name in names]), strict=True))
        return sums

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._sums.clear()
