"""Output magnitudes of linear layers, summed while a model trains (MIGU: arXiv 2406.17245, §3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.model.objectives import IGNORE, observe_logits, output_head, unwrap


class OutputMagnitude:
    """Sums |output| over positions for each output feature of some modules.

    Counted are forward passes in training mode with gradients on; evaluation, no-grad passes and the recomputation of
    gradient checkpointing (which runs inside a backward pass) are not. Sums need no division: whoever ranks rows by
    them gets the same ranks whatever the number of tokens, micro-batches or processes.

    A layer that PEFT wrapped with LoRA is measured twice: its whole output (base and adapters together) under its own
    path, and the output of each adapter's A under that module's path (`….lora_A.<adapter>`). The last layer of the
    vocabulary head is measured where there is a label, since nothing else is projected.

    Attributes:
        rows: count only the first rows of the model's next pass (a batch without the views behind it), and nothing of
            the passes after it (other methods' views and references) until it is set again; None counts all.
        positions: which positions of those rows count, [rows, S] bool by module path; all where nothing is said.
    """

    def __init__(self, model: nn.Module, modules: Iterable[str]) -> None:
        self.rows: int | None = None
        self.positions: Mapping[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._handles: list[Any] = [model.register_forward_hook(self._pass_ends)]
        last = output_head(unwrap(model))
        for path in modules:
            module = model.get_submodule(path)
            if module is last:
                self._handles.append(observe_logits(module, self._logits(path)))
                continue
            adapters = getattr(module, "lora_A", {})
            measured = {path: module, **{f"{path}.lora_A.{name}": adapters[name] for name in adapters}}
            for name, part in measured.items():
                self._handles.append(part.register_forward_hook(self._counter(name, path)))

    def _pass_ends(self, module: nn.Module, *_: Any) -> None:
        if self.rows is not None and module.training and torch.is_grad_enabled():
            self.rows = 0

    def _counter(self, name: str, path: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def count(module: nn.Module, _: Any, output: Tensor) -> None:
            if module.training and not inside_backward():
                self._add(name, self.of(path, output))

        return count

    def _logits(self, path: str) -> Callable[[Tensor, Tensor], None]:
        def count(logits: Tensor, labels: Tensor) -> None:
            if self.rows != 0 and torch.is_grad_enabled() and not inside_backward():
                self._add(path, magnitude(logits * (labels != IGNORE)[:, None] if path in self.positions else logits))

        return count

    def of(self, path: str, output: Tensor) -> Tensor | None:
        """What a module's output of the present pass counts, [d_out] float32; None for a pass that does not count."""
        if self.rows == 0 or not torch.is_grad_enabled():
            return None
        own, wanted = output.detach()[: self.rows], self.positions.get(path)
        return magnitude(own if wanted is None else own * wanted[..., None])

    def _add(self, name: str, part: Tensor | None) -> None:
        if part is not None:
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def pop(self) -> dict[str, Tensor]:
        """The sums since the last call, of all processes together, [d_out] float32 by module path; starts anew.

        Every process must call this at the same point (once for each optimizer step).

        Raises:
            MethodError: nothing was counted.
        """
        sums, self._sums = self._sums, {}
        return of_all_processes(sums)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._sums.clear()


def magnitude(outputs: Tensor) -> Tensor:
    """Σ |y| over every position, [d_out] float32, of outputs [..., d_out]."""
    # As a norm nothing of the outputs' size is written.
    return torch.linalg.vector_norm(outputs.detach().flatten(0, -2), 1, 0, dtype=torch.float32)


def of_all_processes(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What forward passes counted, summed over every process; every process must call it with the same names.

    Raises:
        MethodError: nothing was counted.
    """
    if not sums:
        raise MethodError(
            "No forward pass in training mode was seen since the last step. Gradient checkpointing with "
            "`use_reentrant: true` hides them: set `gradient_checkpointing_kwargs: {use_reentrant: false}`."
        )
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return dict(sums)
    names = sorted(sums)  # the same order in every process, whatever ran first
    flat = torch.cat([sums[name] for name in names])
    torch.distributed.all_reduce(flat)
    return dict(zip(names, flat.split([len(sums[name]) for name in names]), strict=True))


def inside_backward() -> bool:
    """Whether a backward pass is going on, in which gradient checkpointing computes forward passes again."""
    return torch._C._current_graph_task_id() != -1
