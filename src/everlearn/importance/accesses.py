"""Accesses of feed-forward neurons, read as a memory: a token accesses the neurons that are most active for it.

A feed-forward layer computes Σ_i m_i v_i, with v_i the columns of its output projection (arXiv 2012.14913). Neuron i is
a memory slot with value v_i, and m_i, the input of that projection, says how much a token reads of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlearn.importance.magnitude import StepSums, inside_backward
from everlearn.model.anatomy import Anatomy, Owned
from everlearn.model.architectures import Tokens
from everlearn.model.objectives import Objective, where_text_is
from everlearn.model.training_mode import evaluating


@dataclass(frozen=True)
class MemoryLayer:
    """A feed-forward layer, whose neurons are memory slots.

    Attributes:
        output: path of its output projection.
        slots: number of its neurons.
        tokens: the tokens that it is applied to.
        values: the parameter whose columns are the values.
        keys: the parameters whose rows are the keys: the widening projections, with biases.
    """

    output: str
    slots: int
    tokens: Tokens
    values: Owned
    keys: tuple[Owned, ...]


def memory_layers(model: nn.Module, layout: Anatomy) -> Iterator[MemoryLayer]:
    """Yield the feed-forward layers of a plain model, from the first to the last."""
    neurons, outputs = ([site for site in layout.sites if site.kind == kind] for kind in ("neuron", "output"))
    for keys, output in zip(neurons, outputs, strict=True):
        path = output.module
        dim = 0 if isinstance(model.get_submodule(path), Conv1D) else 1
        values = Owned(f"{path}.weight", dim, 2)
        yield MemoryLayer(path, keys.units, layout.linears[path].tokens, values, keys.owned)


class SlotAccesses(StepSums):
    """Count the tokens of a training step that access each neuron; :meth:`pop` returns them by output projection.

    `positions` must name every layer (:func:`positions_in`). A token accesses `most` neurons of each layer.
    """

    def __init__(self, model: nn.Module, layers: Iterable[MemoryLayer], most: int) -> None:
        super().__init__(model)
        for layer in layers:
            self._widths[layer.output] = layer.slots
            hook = self._counter(layer.output, most)
            self._hooks.enter_context(model.get_submodule(layer.output).register_forward_pre_hook(hook))

    def _counter(self, path: str, most: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def count(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if module.training and self.rows != 0 and torch.is_grad_enabled() and not inside_backward():
                self._add(path, accesses(inputs[0], most, self.positions[path]).sum(0))

        return count


def accesses(activations: Tensor, most: int, positions: Tensor) -> Tensor:
    """Return how many tokens of each row access each neuron, [rows, n] float32.

    A token accesses the `most` neurons with the largest |m|; one with m = 0 (behind a ReLU) is not accessed.

    Args:
        activations: m, [rows, S, n] or [rows · S, n]; further rows after those of the batch are ignored.
        most: number of neurons that a token accesses.
        positions: which tokens of the batch count, [rows, S] bool.
    """
    own = activations.detach().flatten(0, -2)[: positions.numel()].view(*positions.shape, -1)
    sizes, indices = own.abs().topk(most, -1)
    counted = ((sizes > 0) & positions[..., None]).float()
    counts = torch.zeros(len(own), own.shape[-1], device=own.device)
    return counts.scatter_add_(1, indices.flatten(1), counted.flatten(1))


def positions_in(batch: Mapping[str, Tensor], layers: Iterable[MemoryLayer]) -> dict[str, Tensor]:
    """Return which tokens of a batch are text and not padding, [rows, S] bool by the output projection of a layer."""
    text = where_text_is(batch)
    everything = torch.ones_like(batch["input_ids"], dtype=torch.bool)
    return {layer.output: text.get(layer.tokens, everything) for layer in layers}


@torch.no_grad()
def rows_with_access(
    model: nn.Module, batches: Iterable[dict[str, Tensor]], objective: Objective, layers: list[MemoryLayer], most: int
) -> tuple[Tensor, int]:
    """Return in how many rows of a text any token accesses each neuron, [slots] float32, and the number of rows.

    The slots of all layers follow each other. The model is run without dropout.
    """
    counts = {layer.output: torch.zeros(layer.slots, device=next(model.parameters()).device) for layer in layers}
    positions: dict[str, Tensor] = {}
    read = 0

    def counter(path: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def count(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            counts[path] += (accesses(inputs[0], most, positions[path]) > 0).sum(0)

        return count

    with ExitStack() as hooks, evaluating(model):
        for path in counts:
            hooks.enter_context(model.get_submodule(path).register_forward_pre_hook(counter(path)))
        for batch in batches:
            positions = positions_in(batch, layers)
            objective.hidden(model, objective.inputs(batch))
            read += len(batch["input_ids"])
    return torch.cat(list(counts.values())), read
