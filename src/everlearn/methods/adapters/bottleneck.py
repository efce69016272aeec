"""Modules after the feed-forward networks of a model, and the bottleneck adapter (arXiv 1902.00751, 2005.00247)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everlearn.errors import MethodError
from everlearn.methods.engine.attachment import Attachment, computing_like
from everlearn.model.anatomy import Site, anatomy

Activation = Literal["relu", "gelu", "tanh"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "tanh": F.tanh}
START = 0.02
"""Standard deviation of initial weights, as in the adapters library and in BERT."""


def feed_forward_outputs(model: nn.Module) -> list[Site]:
    """Return the sites of the adapters: the second feed-forward projection of each layer, before dropout."""
    return [site for site in anatomy(model).sites if site.kind == "output"]


class AfterFeedForward(Attachment):
    """One module after each feed-forward network of a model.

    Args:
        layers: in the order of :func:`feed_forward_outputs`; the method ``hook`` of each is a forward hook of its
            projection, and returns the replacement of the output, [..., H].
    """

    shares_prompts = True

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def place(self, model: nn.Module) -> None:
        sites = feed_forward_outputs(model)
        if len(sites) != len(self.layers):
            raise MethodError(f"There are {len(self.layers)} adapters for the {len(sites)} layers of this model.")
        for site, layer in zip(sites, self.layers, strict=True):
            model.get_submodule(site.module).register_forward_hook(layer.hook)  # type: ignore[arg-type]


class Bottleneck(nn.Module):
    """h ← h + W_up φ(W_down h + b_down) + b_up.

    Args:
        features: H, the size of h.
        inner: the width of the bottleneck.
        activation: φ.
    """

    def __init__(self, features: int, inner: int, activation: Activation) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(features, inner), nn.Linear(inner, features)
        self.activation = ACTIVATIONS[activation]
        nn.init.normal_(self.down.weight, std=START)
        for parameter in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor) -> Tensor:
        with computing_like(hidden):
            changed: Tensor = hidden + self.up(self.activation(self.down(hidden)))
        return changed

    def hook(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return self(output)


def bottlenecks(model: nn.Module, reduction_factor: int, activation: Activation) -> AfterFeedForward:
    """Create a bottleneck adapter of width hidden / `reduction_factor` (at least 1) for each layer.

    Initially the function of the model is unchanged.
    """
    return AfterFeedForward(
        Bottleneck(site.units, max(1, site.units // reduction_factor), activation)
        for site in feed_forward_outputs(model)
    )
