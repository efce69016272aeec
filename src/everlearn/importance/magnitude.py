"""Output magnitudes of linear layers, accumulated during training (MIGU: arXiv 2406.17245, §3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.model.anatomy import anatomy
from everlearn.model.objectives import IGNORE
from everlearn.model.vocabulary_head import observe_logits, output_head, unwrap

NOTHING_SEEN = (
    "No forward pass in training mode was seen since the last step. Gradient checkpointing with `use_reentrant: true` "
    "hides them: set `activation_checkpointing_kwargs: {use_reentrant: false}`."
)
"""Message if no outputs were counted."""
CACHED = 2**18
"""Number of outputs whose absolute values a CPU computes at once."""


class StepSums:
    """Base class of what is summed over the positions of the training passes of an optimizer step.

    Forward passes in training mode with gradients are counted; evaluation, no-grad passes and the recomputation of
    gradient checkpointing (which runs inside a backward pass) are not. A subclass registers the hooks that count, sets
    the number of sums of each module and calls :meth:`_add`.

    Attributes:
        rows: number of first rows of the next pass that are counted (the batch without the views after it); later
            passes are not counted until it is set again. None counts all.
        positions: mask of the positions that are counted, [rows, S] bool by module path; all by default.
    """

    def __init__(self, model: nn.Module) -> None:
        self.rows: int | None = None
        self.positions: Mapping[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._widths: dict[str, int] = {}
        self._hooks = ExitStack()
        self._hooks.enter_context(model.register_forward_hook(self._pass_ends))

    def _pass_ends(self, module: nn.Module, *_: Any) -> None:
        if self.rows is not None and module.training and torch.is_grad_enabled():
            self.rows = 0

    def _add(self, name: str, part: Tensor | None) -> None:
        if part is not None:
            self._sums[name] = self._sums[name] + part if name in self._sums else part

    def take(self) -> dict[str, Tensor]:
        """Return the sums as :meth:`pop` does, or an empty dict if nothing was counted."""
        counted, self._sums = self._sums, {}
        if not counted:
            return {}
        some = next(iter(counted.values()))
        # Another process may have run layers that this one skipped (layer drop).
        return of_all_processes(
            {name: counted.get(name, some.new_zeros(width)) for name, width in self._widths.items()}
        )

    def pop(self) -> dict[str, Tensor]:
        """Return and reset the sums since the last call, over all processes, [n] float32 by module path.

        Every process must call this at the same point (once for each optimizer step).

        Raises:
            MethodError: nothing was counted.
        """
        sums = self.take()
        if not sums:
            raise MethodError(NOTHING_SEEN)
        return sums

    def close(self) -> None:
        """Remove the hooks."""
        self._hooks.close()
        self._sums.clear()


class OutputMagnitude(StepSums):
    """Accumulate |output| over positions for each output feature of some modules.

    The sums are not divided: the ranks of the rows are the same whatever the number of tokens, micro-batches or
    processes.

    A layer that PEFT wrapped with LoRA is measured twice: its full output (base and adapters together) under its own
    path, and the output of each adapter's A under the path of that module (`….lora_A.<adapter>`); with `own_of_b` the
    output of each adapter's B (`….lora_B.<adapter>`) replaces that of the full layer. The vocabulary head is measured
    at labels, as nothing else is projected; or at every position if an external trainer projects all.

    Attributes:
        labels: number of labels of the batch, by which the outputs of the head are limited as rows are.
    """

    def __init__(self, model: nn.Module, modules: Iterable[str], *, own_of_b: bool = False) -> None:
        super().__init__(model)
        self.labels: int | None = None
        self._flowing: dict[str, Tensor] = {}
        last, self._head = output_head(unwrap(model)), anatomy(model).head
        for path in modules:
            module = model.get_submodule(path)
            parts = {part: getattr(module, part, {}) for part in ("lora_A", *(["lora_B"] if own_of_b else []))}
            measured = {f"{path}.{part}.{name}": of[name] for part, of in parts.items() for name in of}
            if not (own_of_b and measured):
                measured = {path: module, **measured}
            for name, part in measured.items():
                self._widths[name] = getattr(part, "out_features", None) or part.get_parameter("weight").shape[-1]
                adapter = name.rpartition(".")[2] if part is not module else None
                dora = adapter if adapter in getattr(module, "lora_magnitude_vector", {}) else None
                self._hooks.enter_context(part.register_forward_hook(self._counter(name, path, dora)))
            for adapter, layer in getattr(module, "lora_magnitude_vector", {}).items():
                self._follow_text(f"{path}.{adapter}", layer)
            if module is last:
                self._hooks.callback(observe_logits(module, self._logits(path)).remove)

    def _follow_text(self, key: str, layer: nn.Module) -> None:
        """Record the input of a DoRA layer while it runs, to tell it from the identity matrix.

        PEFT's DoRA first passes the identity through A and B to compute the norms of W + s B A, which must not be
        counted.
        """

        def enters(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._flowing[key] = inputs[0]

        def leaves(*_: Any) -> None:
            self._flowing.pop(key, None)

        self._hooks.enter_context(layer.register_forward_pre_hook(enters))
        self._hooks.enter_context(layer.register_forward_hook(leaves))

    def _counter(self, name: str, path: str, dora: str | None) -> Callable[[nn.Module, Any, Tensor], None]:
        """Return a forward hook that counts the outputs of a layer, or of the A or B of a DoRA adapter."""
        key = f"{path}.{dora}"

        def count(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if dora is not None:
                if inputs[0] is not self._flowing.get(key):
                    return
                self._flowing[key] = output
            # A tensor without a feature dimension holds losses instead of logits.
            if module.training and output.dim() > 1 and not inside_backward():
                self._add(name, self._counted(path, output))

        return count

    def _logits(self, path: str) -> Callable[[Tensor, Tensor], None]:
        def count(logits: Tensor, labels: Tensor) -> None:
            if self.rows != 0 and torch.is_grad_enabled() and not inside_backward():
                self._add(path, magnitude(logits * (labels != IGNORE)[:, None] if path in self.positions else logits))

        return count

    def _counted(self, path: str, output: Tensor) -> Tensor | None:
        """Return the magnitudes of the outputs that are counted, or None."""
        if self.rows == 0 or not torch.is_grad_enabled():
            return None
        at_labels = output.dim() == 2 and f"{path}.".startswith(f"{self._head}.")
        own, mask = output.detach()[: self.labels if at_labels else self.rows], self.positions.get(path)
        return magnitude(own if mask is None else own * mask.reshape(*own.shape[:-1], 1))

    def close(self) -> None:
        """Remove the hooks."""
        super().close()
        self._flowing.clear()


def magnitude(outputs: Tensor) -> Tensor:
    """Return Σ |y| over all positions of outputs [..., d_out], as [d_out] float32."""
    flat = outputs.detach().flatten(0, -2)
    if flat.device.type != "cpu":
        # A norm needs no temporary tensor of the size of the outputs.
        return torch.linalg.vector_norm(flat, 1, 0, dtype=torch.float32)
    # On a CPU this norm takes ten times as long as a sum, as long as the layer itself; the parts fit into the cache.
    parts = flat.split(max(1, CACHED // flat.shape[1]))
    return torch.stack([part.abs().sum(0, dtype=torch.float32) for part in parts]).sum(0)


def of_all_processes(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sum over all processes in one reduction; every process must call it with the same names in the same order."""
    if not sums or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return dict(sums)
    flat = torch.cat(list(sums.values()))
    torch.distributed.all_reduce(flat)
    return dict(zip(sums, flat.split([len(values) for values in sums.values()]), strict=True))


def inside_backward() -> bool:
    """Return whether a backward pass is running, in which gradient checkpointing recomputes forward passes."""
    return torch._C._current_graph_task_id() != -1
