"""Small networks in a frozen model, whose layers are gated by hard attention (HAT in adapters)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from everlearn.methods.adapters.bottleneck import START, feed_forward_outputs
from everlearn.methods.engine.attachment import computing_like
from everlearn.methods.gates.hard_attention import GatedAttachment


def hidden_size(model: nn.Module) -> int:
    """Return the size of the hidden state: the number of outputs of a feed-forward network."""
    return feed_forward_outputs(model)[0].units


class GatedMLP(nn.Module):
    """Layers h ← a ⊗ φ(W h + b), whose outputs are the units.

    Args:
        name: name of the network; its groups of units are called "<name>.0", "<name>.1" …
        sizes: number of features before the first layer and after each layer.
        activation: φ.
        values: the gates by group, which are set again in each pass.
    """

    def __init__(
        self, name: str, sizes: Sequence[int], activation: Callable[[Tensor], Tensor], values: dict[str, Tensor]
    ) -> None:
        super().__init__()
        self.groups = [f"{name}.{number}" for number in range(len(sizes) - 1)]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        self.activation, self.values = activation, values

    @staticmethod
    def units(name: str, sizes: Sequence[int]) -> dict[str, int]:
        """Return the groups of units and their sizes."""
        return {f"{name}.{number}": size for number, size in enumerate(sizes[1:])}

    def forward(self, features: Tensor) -> Tensor:
        with computing_like(features):
            for group, layer in zip(self.groups, self.layers, strict=True):
                activated = self.activation(layer(features))
                features = activated * self.values[group].to(activated.dtype)
        return features

    def factors(self, free: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield factors of weights and biases by parameter name, from 1 − a of every unit.

        Rows of the first weight: 1 − a_i. Weights between two layers: 1 − min(a_i, a_j), since a weight from or to a
        closed unit has no effect (arXiv 1801.01423, section 2.3). Biases: 1 − a_i.
        """
        for number, group in enumerate(self.groups):
            rows = free[group][:, None]
            before = free[self.groups[number - 1]][None, :] if number else rows
            yield f"layers.{number}.weight", torch.maximum(rows, before)
            yield f"layers.{number}.bias", free[group]

    def start(self) -> None:
        """Initialise the last layer with small values, so that the model starts close to its original function."""
        last: Any = self.layers[-1]
        nn.init.normal_(last.weight, std=START)
        nn.init.zeros_(last.bias)


class GatedNetworks(GatedAttachment):
    """An attachment with gated networks, and possibly other modules."""

    def factors(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        networks = [(path, module) for path, module in self.named_modules() if isinstance(module, GatedMLP)]
        return {f"{path}.{name}": values for path, module in networks for name, values in module.factors(free)}
